// Package client is a small client of lowwater, written from docs/reference/protocol.md. It is an
// example of the protocol, not a product: injectors only, one watch stream a computation, no TLS.
package client

import (
	"context"
	"crypto/rand"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	lowwaterv1 "lowwater/v1"
)

const (
	// Unknown is the event time of what nobody knows anything of.
	Unknown int64 = -1 << 63
	// Finished is the event time of what is over.
	Finished int64 = 1<<63 - 1

	timeout      = 30 * time.Second // of a call with all its attempts
	attempt      = 10 * time.Second // of one of them that may be repeated
	messageBytes = 64 << 20
	hops         = 2 // redirects in a row that are followed at once
)

// View is what is published of a computation, as far as this client has seen.
type View struct {
	Name        string
	Registered  bool
	Incarnation uint64
	Low         int64
}

// route says where a computation is served.
type route struct {
	address string // empty: ask at home
	epoch   uint64 // the greatest that was seen
}

// Client speaks to one deployment. All methods may be used at once.
type Client struct {
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu        sync.Mutex
	addresses []string // that were given, and those that redirects led to
	home      string   // the one that is asked about what has no route
	token     string
	conns     map[string]*grpc.ClientConn
	routes    map[string]*route
	views     map[string]View
	sender    []byte
	stream    uint64 // the newest of all shards
	reporters map[string]*reporter
}

// Connect returns a client for the deployment at one or more HOST:PORT; when these are away, it
// asks the shards that they named. It connects when it is first used.
func Connect(addresses ...string) *Client {
	ctx, stop := context.WithCancel(context.Background())
	return &Client{
		ctx: ctx, stop: stop, addresses: addresses, home: addresses[0],
		conns: map[string]*grpc.ClientConn{}, routes: map[string]*route{}, views: map[string]View{},
		sender: random(), reporters: map[string]*reporter{},
	}
}

// Close ends the client. What was staged and not flushed may be lost; that is safe.
func (c *Client) Close() {
	c.stop()
	c.work.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
}

// Register registers a computation that reads the inputs. Repeating it is harmless.
func (c *Client) Register(ctx context.Context, name string, inputs ...string) error {
	return c.call(ctx, "", true, func(ctx context.Context, conn *grpc.ClientConn, token string) (string, error) {
		request := &lowwaterv1.RegisterRequest{ServerToken: token, Name: name, Inputs: inputs}
		answer, err := lowwaterv1.NewTopologyServiceClient(conn).Register(ctx, request)
		return answer.GetServerToken(), err
	})
}

// Claim takes ownership of the n ranges between n + 1 ascending keys. It is durable when it
// returns.
func (c *Client) Claim(ctx context.Context, name, worker string, bounds ...[]byte) (*Claim, error) {
	id := random() // of the claim: every attempt has it
	var granted *lowwaterv1.ClaimResponse
	err := c.call(ctx, name, true, func(ctx context.Context, conn *grpc.ClientConn, token string) (string, error) {
		request := &lowwaterv1.ClaimRequest{ServerToken: token, Computation: name, Bounds: bounds, Worker: worker, RequestId: id}
		answer, err := lowwaterv1.NewWorkerServiceClient(conn).Claim(ctx, request)
		granted = answer
		return answer.GetServerToken(), err
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(name, granted.GetEpoch())
	claim := &Claim{client: c, name: name, sequencer: granted.GetSequencer(), values: make([]int64, len(bounds)-1), lost: map[uint32]bool{}, changed: make(chan struct{})}
	c.carry(claim)
	return claim, nil
}

// Get reads what is published of a computation now.
func (c *Client) Get(ctx context.Context, name string) (View, error) {
	var found View
	err := c.call(ctx, name, true, func(ctx context.Context, conn *grpc.ClientConn, token string) (string, error) {
		request := &lowwaterv1.GetWatermarksRequest{ServerToken: token, Computations: []string{name}}
		answer, err := lowwaterv1.NewWatermarkServiceClient(conn).GetWatermarks(ctx, request)
		if err != nil {
			return "", err
		}
		if err := c.check(answer.GetServerToken()); err != nil {
			return "", err
		}
		for _, redirect := range answer.GetRedirects() {
			return "", moved(redirect)
		}
		for _, each := range answer.GetWatermarks() {
			view, _, fresh := c.admit(each)
			if !fresh {
				return "", &Refusal{Reason: "UNAVAILABLE", Message: "a shard that was replaced has answered"}
			}
			found = view
		}
		return answer.GetServerToken(), nil
	})
	return found, err
}

// release gives a claim back. It may not be repeated.
func (c *Client) release(ctx context.Context, claim *Claim) error {
	return c.call(ctx, claim.name, false, func(ctx context.Context, conn *grpc.ClientConn, token string) (string, error) {
		request := &lowwaterv1.ReleaseRequest{ServerToken: token, Computation: claim.name, Sequencer: claim.sequencer}
		_, err := lowwaterv1.NewWorkerServiceClient(conn).Release(ctx, request, grpc.WaitForReady(true))
		return token, err
	})
}

type once func(ctx context.Context, conn *grpc.ClientConn, token string) (string, error)

// call makes the attempts of a call about a computation, or about none, and says of the last one
// what it was refused for.
func (c *Client) call(ctx context.Context, name string, repeatable bool, try once) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	wait := waits{most: time.Second}
	followed := 0
	for {
		address := c.addressOf(name)
		refusal := c.try(ctx, address, repeatable, try)
		if refusal == nil {
			return nil
		}
		switch {
		case refusal.Reason == "MOVED":
			if c.follow(redirectOf(refusal)) {
				if followed++; followed%(hops+1) != 0 {
					continue
				}
			} else {
				c.locate(ctx, name)
			}
		case !refusal.later(), refusal.Unknown && !repeatable:
			return refusal
		case refusal.away():
			c.failed(address)
		}
		if sleep(ctx, wait.next(refusal.After)) != nil {
			return refusal
		}
	}
}

func (c *Client) try(ctx context.Context, address string, repeatable bool, try once) *Refusal {
	if repeatable {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, attempt)
		defer cancel()
	}
	conn, token := c.reach(address)
	answered, err := try(ctx, conn, token)
	if err == nil {
		err = c.check(answered)
	}
	if err != nil {
		return refusalOf(err)
	}
	return nil
}

// locate asks home where a computation is, with the greatest epoch seen. A single authority, or one
// without that call, serves it itself.
func (c *Client) locate(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, attempt/2)
	defer cancel()
	c.mu.Lock()
	home, epoch := c.home, c.route(name).epoch
	c.route(name).address = "" // if nobody answers, home is asked
	c.mu.Unlock()
	conn, token := c.reach(home)
	request := &lowwaterv1.LocateRequest{ServerToken: token, Computations: []string{name}, Epochs: []uint64{epoch}}
	answer, err := lowwaterv1.NewClusterServiceClient(conn).Locate(ctx, request)
	if err != nil && refusalOf(err).away() {
		c.failed(home)
	}
	if err != nil || c.check(answer.GetServerToken()) != nil {
		return
	}
	for _, each := range answer.GetRedirects() {
		c.follow(each)
	}
}

// follow takes a redirect, and says whether it leads anywhere: not when its epoch is below the
// greatest seen, because then its sender is out of date.
func (c *Client) follow(redirect *lowwaterv1.Redirect) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := c.route(redirect.GetComputation())
	if redirect.GetEpoch() < to.epoch {
		return false
	}
	to.epoch, to.address = redirect.GetEpoch(), redirect.GetAddress()
	if to.address != "" && !slices.Contains(c.addresses, to.address) {
		c.addresses = append(c.addresses, to.address)
	}
	return to.address != ""
}

// failed forgets the routes to an address, which then go home; if that is home, the next one is.
func (c *Client) failed(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, to := range c.routes {
		if to.address == address {
			to.address = ""
		}
	}
	if address == c.home {
		c.home = c.addresses[(slices.Index(c.addresses, address)+1)%len(c.addresses)]
	}
}

func (c *Client) addressOf(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.placeOf(name)
}

// placeOf returns where to ask about a computation. The lock is held, as of those below.
func (c *Client) placeOf(name string) string {
	if to := c.route(name); to.address != "" {
		return to.address
	}
	return c.home
}

func (c *Client) route(name string) *route {
	if c.routes[name] == nil {
		c.routes[name] = &route{}
	}
	return c.routes[name]
}

func (c *Client) note(name string, epoch uint64) {
	to := c.route(name)
	to.epoch = max(to.epoch, epoch)
}

// reach returns the connection to an address, and the token to name there.
func (c *Client) reach(address string) (*grpc.ClientConn, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.conns[address]
	if conn == nil {
		quick := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
		conn, _ = grpc.NewClient(address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytes), grpc.MaxCallSendMsgSize(messageBytes)),
			// gRPC for Go takes no ping more often than this.
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
			grpc.WithStaticStreamWindowSize(64<<10),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second}),
			grpc.WithDisableRetry(), // the authority says itself what may be repeated
		)
		c.conns[address] = conn
	}
	return conn, c.token
}

// check accepts the first deployment that answers, and no other.
func (c *Client) check(token string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token == "" {
		c.token = token
	}
	if token != c.token {
		return &Refusal{Reason: "SERVER_TOKEN_MISMATCH", Message: "this client belongs to the deployment " + c.token + ", and another one answers"}
	}
	return nil
}

// admit takes a watermark over, as far as it is news: it returns what to show, whether that has
// changed, and whether the sender is up to date.
func (c *Client) admit(got *lowwaterv1.Watermark) (view View, changed, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := got.GetComputation()
	known, met := c.views[name]
	if got.GetEpoch() < c.route(name).epoch && got.GetRegistered() {
		return View{Name: name, Low: Unknown}, false, false
	}
	c.note(name, got.GetEpoch())
	next := View{Name: name, Registered: got.GetRegistered(), Incarnation: got.GetIncarnation(), Low: got.GetLowMicros()}
	if met {
		if next.Incarnation < known.Incarnation {
			return known, false, true
		}
		if next.Incarnation == known.Incarnation {
			next.Low = max(next.Low, known.Low)
		}
		if next == known {
			return next, false, true
		}
	}
	c.views[name] = next
	return next, true, true
}

func moved(redirect *lowwaterv1.Redirect) *Refusal {
	return &Refusal{Reason: "MOVED", Message: "another shard serves it", Metadata: map[string]string{
		"computation": redirect.GetComputation(), "address": redirect.GetAddress(), "epoch": strconv.FormatUint(redirect.GetEpoch(), 10),
	}}
}

func random() []byte {
	bytes := make([]byte, 16)
	rand.Read(bytes)
	return bytes
}
