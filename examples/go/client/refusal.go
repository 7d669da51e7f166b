package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lowwaterv1 "lowwater/v1"
)

// Refusal is what an authority refused, or a failure of the connection. Reason is that of
// ErrorInfo, or the name of gRPC's code without one.
type Refusal struct {
	Reason   string
	Message  string
	Metadata map[string]string
	// After is the least time to wait before a repetition; 0 when the authority did not say.
	After time.Duration
	// Unknown says that the call may have been done.
	Unknown bool
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Reason, r.Message) }

// later says whether the same call may succeed later.
func (r *Refusal) later() bool {
	switch r.Reason {
	case "JOURNAL_FAILED", "OVERLOADED", "SHUTTING_DOWN", "UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED":
		return true
	}
	return false
}

// away says whether another address should be asked.
func (r *Refusal) away() bool { return r.Unknown || r.Reason == "SHUTTING_DOWN" }

// refusalOf returns what a failed call means.
func refusalOf(err error) *Refusal {
	if refusal, ok := err.(*Refusal); ok {
		return refusal
	}
	st, ok := status.FromError(err)
	if !ok {
		if err == context.Canceled || err == context.DeadlineExceeded {
			return &Refusal{Reason: "DEADLINE_EXCEEDED", Message: err.Error(), Unknown: true}
		}
		// The end of a stream that nobody refused: another one may be opened.
		return &Refusal{Reason: "UNAVAILABLE", Message: err.Error(), Unknown: true}
	}
	refusal := &Refusal{Message: st.Message(), Reason: nameOf(st.Code())}
	for _, detail := range st.Proto().GetDetails() {
		switch detail.GetTypeUrl() {
		case "type.googleapis.com/google.rpc.ErrorInfo":
			info := &lowwaterv1.ErrorInfo{}
			if proto.Unmarshal(detail.GetValue(), info) == nil && info.GetDomain() == "lowwater" {
				refusal.Reason, refusal.Metadata = info.GetReason(), info.GetMetadata()
			}
		case "type.googleapis.com/google.rpc.RetryInfo":
			retry := &lowwaterv1.RetryInfo{}
			if proto.Unmarshal(detail.GetValue(), retry) == nil {
				refusal.After = retry.GetRetryDelay().AsDuration()
			}
		}
	}
	switch refusal.Reason {
	case "UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED":
		refusal.Unknown = true
	}
	return refusal
}

// nameOf returns what a code is called in the table of reasons: UPPER_SNAKE.
func nameOf(code codes.Code) string {
	if code == codes.Canceled {
		return "CANCELLED"
	}
	var name strings.Builder
	for i, letter := range code.String() {
		if i > 0 && letter >= 'A' && letter <= 'Z' {
			name.WriteByte('_')
		}
		name.WriteRune(letter)
	}
	return strings.ToUpper(name.String())
}

// redirectOf returns where MOVED leads.
func redirectOf(refusal *Refusal) *lowwaterv1.Redirect {
	epoch, _ := strconv.ParseUint(refusal.Metadata["epoch"], 10, 64)
	return &lowwaterv1.Redirect{Computation: refusal.Metadata["computation"], Address: refusal.Metadata["address"], Epoch: epoch}
}

// waits says how long to wait: the n-th wait is random, up to min(most, 0.1 s * 2^n), and between
// once and twice what was asked for.
type waits struct {
	most  time.Duration
	times int
}

func (b *waits) next(after time.Duration) time.Duration {
	bound := b.most
	if b.times < 10 {
		bound = min(bound, 100*time.Millisecond<<b.times)
	}
	b.times++
	wait := time.Duration(rand.Float64() * float64(bound))
	if after > 0 {
		wait = max(wait, after+time.Duration(rand.Float64()*float64(after)))
	}
	return wait
}

// sleep waits, unless the context ends before.
func sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
