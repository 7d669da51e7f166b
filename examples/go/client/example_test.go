package client_test

import (
	"context"
	"log"
	"time"

	"lowwater/client"
)

// An injector says how far it is, and a reader waits for an hour.
func Example() {
	ctx := context.Background()
	lowwater := client.Connect("localhost:7420")
	defer lowwater.Close()
	if err := lowwater.Register(ctx, "clicks"); err != nil {
		log.Fatal(err)
	}
	claim, err := lowwater.Claim(ctx, "clicks", "importer-1", []byte(""), []byte("m"), []byte(""))
	if err != nil {
		log.Fatal(err)
	}
	// After what was read is durable: nothing older will come, in either range.
	noon := time.Date(2013, 1, 9, 12, 0, 0, 0, time.UTC).UnixMicro()
	if err := claim.Advance(noon, noon); err != nil {
		log.Fatal(err)
	}
	if err := claim.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	for view := range lowwater.Watch(ctx, "clicks") {
		if view.Low >= noon {
			log.Print("all before noon is here")
			return
		}
	}
}
