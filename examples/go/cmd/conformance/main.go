// Conformance takes the commands of the conformance suite: python -m conformance client -- this
// program.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"lowwater/client"
)

type command struct {
	Do      string   `json:"do"`
	Address string   `json:"address"`
	Name    string   `json:"name"`
	Inputs  []string `json:"inputs"`
	Bounds  []string `json:"bounds"`
	As      string   `json:"as"`
	Claim   string   `json:"claim"`
	Micros  []int64  `json:"micros"`
}

type object = map[string]any

var printing sync.Mutex

func say(line object) {
	printing.Lock()
	defer printing.Unlock()
	text, _ := json.Marshal(line)
	fmt.Printf("%s\n", text)
}

type session struct {
	client *client.Client
	claims map[string]*client.Claim
}

func (s *session) do(asked command) (object, error) {
	ctx := context.Background()
	switch asked.Do {
	case "connect":
		s.close()
		s.client, s.claims = client.Connect(asked.Address), map[string]*client.Claim{}
		return nil, nil
	case "close":
		s.close()
		return nil, nil
	case "register":
		return nil, s.client.Register(ctx, asked.Name, asked.Inputs...)
	case "claim":
		var bounds [][]byte
		for _, text := range asked.Bounds {
			bound, err := hex.DecodeString(text)
			if err != nil {
				return nil, err
			}
			bounds = append(bounds, bound)
		}
		claim, err := s.client.Claim(ctx, asked.Name, "go", bounds...)
		s.claims[asked.As] = claim
		return nil, err
	case "advance":
		return nil, s.claims[asked.Claim].Advance(asked.Micros...)
	case "flush":
		return nil, s.claims[asked.Claim].Flush(ctx)
	case "release":
		return nil, s.claims[asked.Claim].Release(ctx)
	case "get":
		view, err := s.client.Get(ctx, asked.Name)
		return object{"low": view.Low, "registered": view.Registered}, err
	case "watch":
		views := s.client.Watch(ctx, asked.Name)
		go func() {
			for view := range views {
				say(object{"seen": object{"name": view.Name, "incarnation": view.Incarnation, "low": view.Low}})
			}
		}()
		return nil, nil
	}
	return nil, fmt.Errorf("there is no command %q", asked.Do)
}

func (s *session) close() {
	if s.client != nil {
		s.client.Close()
	}
	s.client = nil
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	s := &session{}
	for lines.Scan() {
		var asked command
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			say(object{"error": "INVALID_ARGUMENT", "message": err.Error()})
			continue
		}
		answer, err := s.do(asked)
		if err == nil {
			say(object{"ok": answer})
		} else if refusal, ok := err.(*client.Refusal); ok {
			say(object{"error": refusal.Reason, "message": refusal.Message})
		} else {
			say(object{"error": "UNKNOWN", "message": err.Error()})
		}
	}
	s.close()
}
