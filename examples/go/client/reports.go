package client

import (
	"context"
	"sync"
	"time"

	lowwaterv1 "lowwater/v1"
)

const beat = 3 * time.Second

// Claim is some key ranges that this process owns. The i-th range has the handle i.
type Claim struct {
	client    *Client
	name      string
	sequencer uint64

	// Below: under the client's lock.
	values   []int64
	version  int // of the newest state that was staged
	answered int // of the newest state that was acknowledged
	refused  *Refusal
	lost     map[uint32]bool
	gone     string // why all ranges are lost
	carrier  *reporter
	full     bool          // whether the open stream has had all ranges
	changed  chan struct{} // closed when one of them changes
}

// Advance stages a state, one event time a range: nothing older will come. It must be durable at
// the caller's. The newest state replaces what was not sent yet.
func (k *Claim) Advance(micros ...int64) error {
	c := k.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.gone != "" {
		return k.stale()
	}
	copy(k.values, micros)
	k.version++
	k.carrier.awake()
	return nil
}

// Flush waits until the newest state is durable, and says what it was refused for.
func (k *Claim) Flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c := k.client
	c.mu.Lock()
	version := k.version
	for k.gone == "" && k.answered < version {
		changed := k.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return &Refusal{Reason: "DEADLINE_EXCEEDED", Message: "the newest state was not acknowledged in time; it stays staged"}
		}
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	if k.gone != "" {
		return k.stale()
	}
	if k.refused != nil {
		return k.refused
	}
	return nil
}

// Lost returns the handles that a newer claim has taken. Write nothing more for them.
func (k *Claim) Lost() []uint32 {
	k.client.mu.Lock()
	defer k.client.mu.Unlock()
	var handles []uint32
	for handle := range k.lost {
		handles = append(handles, handle)
	}
	return handles
}

// Release gives the ranges back: they hold until somebody claims them.
func (k *Claim) Release(ctx context.Context) error {
	if err := k.client.release(ctx, k); err != nil {
		return err
	}
	k.client.mu.Lock()
	defer k.client.mu.Unlock()
	k.lose(nil, "it was released")
	return nil
}

func (k *Claim) stale() *Refusal {
	return &Refusal{Reason: "STALE_SEQUENCER", Message: k.gone, Metadata: map[string]string{"computation": k.name}}
}

// lose gives ranges up; nil: all. The lock is held, as of those below.
func (k *Claim) lose(handles []uint32, why string) {
	for _, handle := range handles {
		k.lost[handle] = true
	}
	if len(handles) == 0 || len(k.lost) == len(k.values) {
		k.gone = why
		delete(k.carrier.claims, k)
	}
	k.tell()
}

func (k *Claim) tell() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// group returns the claim's present state: of all ranges that it has.
func (k *Claim) group() *lowwaterv1.GroupReport {
	group := &lowwaterv1.GroupReport{Computation: k.name, Sequencer: k.sequencer}
	for handle, value := range k.values {
		if k.lost[uint32(handle)] {
			continue
		}
		if len(k.lost) > 0 {
			group.Handles = append(group.Handles, uint32(handle))
		}
		group.WatermarksMicros = append(group.WatermarksMicros, value)
	}
	return group
}

// reporter has the report stream to one shard: one after the other.
type reporter struct {
	client  *Client
	address string
	wake    chan struct{}
	claims  map[*Claim]bool // under the client's lock
}

func (r *reporter) awake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// carry has a claim reported where its computation is, with its full state. The lock is held.
func (c *Client) carry(claim *Claim) {
	if claim.carrier != nil {
		delete(claim.carrier.claims, claim)
	}
	address := c.placeOf(claim.name)
	r := c.reporters[address]
	if r == nil {
		r = &reporter{client: c, address: address, wake: make(chan struct{}, 1), claims: map[*Claim]bool{}}
		c.reporters[address] = r
		c.work.Add(1)
		go r.run()
	}
	claim.carrier, claim.full = r, false
	r.claims[claim] = true
	r.awake()
}

// run opens one stream after the other, while there is anything to report.
func (r *reporter) run() {
	c := r.client
	defer c.work.Done()
	wait := waits{most: 5 * time.Second}
	for c.ctx.Err() == nil {
		if !r.busy() {
			select {
			case <-r.wake:
			case <-c.ctx.Done():
			}
			continue
		}
		after, err := r.report(&wait)
		if c.ctx.Err() != nil {
			return
		}
		if err != nil {
			refusal := refusalOf(err)
			after = refusal.After
			if refusal.away() {
				c.failed(r.address)
				r.search()
			}
		}
		if sleep(c.ctx, wait.next(after)) != nil {
			return
		}
	}
}

func (r *reporter) busy() bool {
	r.client.mu.Lock()
	defer r.client.mu.Unlock()
	return len(r.claims) > 0
}

// search looks for what a shard that is away has served.
func (r *reporter) search() {
	c := r.client
	for _, claim := range r.all() {
		c.locate(c.ctx, claim.name)
		c.mu.Lock()
		if claim.gone == "" && c.placeOf(claim.name) != r.address {
			c.carry(claim)
		}
		c.mu.Unlock()
	}
}

func (r *reporter) all() []*Claim {
	r.client.mu.Lock()
	defer r.client.mu.Unlock()
	var all []*Claim
	for claim := range r.claims {
		all = append(all, claim)
	}
	return all
}

// report runs one stream until it ends. It returns how long the authority wants to be left alone.
func (r *reporter) report(wait *waits) (time.Duration, error) {
	c := r.client
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	conn, token := c.reach(r.address)
	up, err := lowwaterv1.NewWorkerServiceClient(conn).Report(ctx)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	c.stream++
	open := &lowwaterv1.ReportOpen{ServerToken: token, Sender: c.sender, Stream: c.stream}
	for claim := range r.claims {
		claim.full = false
	}
	c.mu.Unlock()
	if err := up.Send(&lowwaterv1.ReportRequest{Kind: &lowwaterv1.ReportRequest_Open{Open: open}}); err != nil {
		_, err = up.Recv() // says why
		return 0, err
	}
	answers, failed := make(chan *lowwaterv1.ReportResponse), make(chan error, 1)
	var reading sync.WaitGroup
	reading.Add(1)
	defer reading.Wait()
	defer cancel()
	go func() {
		defer reading.Done()
		for {
			answer, err := up.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case answers <- answer:
			case <-ctx.Done():
				return
			}
		}
	}()
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	opened, number, flight, due := false, uint64(0), map[*Claim]int(nil), false
	for {
		if opened && flight == nil {
			if flight = r.send(up, &number, due); flight != nil {
				due = false
			}
		}
		select {
		case err := <-failed:
			return 0, err
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-ticker.C:
			due = true
		case <-r.wake:
			if !r.busy() {
				return 0, nil
			}
		case answer := <-answers:
			switch kind := answer.GetKind().(type) {
			case *lowwaterv1.ReportResponse_Opened:
				if err := c.check(kind.Opened.GetServerToken()); err != nil {
					return 0, err
				}
				opened = true
			case *lowwaterv1.ReportResponse_Ack:
				again := r.acknowledge(kind.Ack, flight)
				if kind.Ack.GetNumber() >= number {
					flight = nil
				}
				if again {
					return 0, nil // what came back to this shard begins on a new stream
				}
				wait.times = 0
			case *lowwaterv1.ReportResponse_Fenced:
				r.fenced(kind.Fenced)
			case *lowwaterv1.ReportResponse_GoAway:
				return time.Duration(kind.GoAway.GetRetryAfterMillis()) * time.Millisecond, nil
			}
		}
	}
}

// send sends the claims with news, or all when a beat is due. It returns what is in flight then:
// claims and the versions of their states.
func (r *reporter) send(up lowwaterv1.WorkerService_ReportClient, number *uint64, all bool) map[*Claim]int {
	c := r.client
	c.mu.Lock()
	flight := map[*Claim]int{}
	report := &lowwaterv1.Report{Number: *number + 1}
	for claim := range r.claims {
		if claim.version > 0 && (all || !claim.full || claim.version > claim.answered) {
			report.Groups = append(report.Groups, claim.group())
			flight[claim], claim.full = claim.version, true
		}
	}
	c.mu.Unlock()
	if len(flight) == 0 {
		return nil
	}
	*number++
	// A failure is told by Recv.
	_ = up.Send(&lowwaterv1.ReportRequest{Kind: &lowwaterv1.ReportRequest_Report{Report: report}})
	return flight
}

// acknowledge takes an answer to reports, and says whether a new stream is needed.
func (r *reporter) acknowledge(ack *lowwaterv1.ReportAck, flight map[*Claim]int) bool {
	c := r.client
	again := false
	refusals := map[*Claim]*Refusal{}
	var lost []*Claim // their computations are not where they were
	c.mu.Lock()
	for _, each := range ack.GetRefused() {
		claim := r.find(each.GetComputation(), each.GetSequencer())
		if claim == nil {
			continue
		}
		switch each.GetReason() {
		case "STALE_SEQUENCER":
			claim.lose(each.GetHandles(), each.GetMessage())
		case "MOVED":
			delete(flight, claim)
			delete(r.claims, claim)
			c.mu.Unlock()
			followed := c.follow(each.GetRedirect())
			c.mu.Lock()
			if !followed {
				lost = append(lost, claim)
			} else {
				c.carry(claim)
			}
			again = again || claim.carrier == r
		case "OLD_STREAM":
			c.stream = max(c.stream, each.GetNewest())
			delete(flight, claim)
			again = true
		default:
			refusals[claim] = &Refusal{Reason: each.GetReason(), Message: each.GetMessage()}
		}
	}
	for claim, version := range flight {
		claim.answered, claim.refused = max(claim.answered, version), refusals[claim]
		claim.tell()
	}
	c.mu.Unlock()
	for _, claim := range lost {
		c.locate(c.ctx, claim.name)
		c.mu.Lock()
		c.carry(claim)
		again = again || claim.carrier == r
		c.mu.Unlock()
	}
	return again
}

func (r *reporter) fenced(told *lowwaterv1.Fenced) {
	r.client.mu.Lock()
	defer r.client.mu.Unlock()
	if claim := r.find(told.GetComputation(), told.GetSequencer()); claim != nil {
		claim.lose(told.GetHandles(), told.GetReason())
	}
}

func (r *reporter) find(name string, sequencer uint64) *Claim {
	for claim := range r.claims {
		if claim.name == name && claim.sequencer == sequencer {
			return claim
		}
	}
	return nil
}
