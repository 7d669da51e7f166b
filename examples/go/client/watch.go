package client

import (
	"context"
	"sync/atomic"
	"time"

	lowwaterv1 "lowwater/v1"
)

const silence = 5 * time.Second // a beat comes each second

// Watch follows a computation until the context ends: the newest value at once, then each change,
// never back. A slow reader skips values. The channel is closed in the end, also when another
// deployment answers.
func (c *Client) Watch(ctx context.Context, name string) <-chan View {
	views := make(chan View, 1)
	ctx, cancel := context.WithCancel(ctx)
	stopped := context.AfterFunc(c.ctx, cancel)
	c.work.Add(1)
	go func() {
		defer c.work.Done()
		defer close(views)
		defer stopped()
		defer cancel()
		wait, followed := waits{most: 5 * time.Second}, 0
		for ctx.Err() == nil {
			address := c.addressOf(name)
			err := c.watch(ctx, address, name, views, &wait)
			if ctx.Err() != nil {
				return
			}
			refusal := refusalOf(err)
			switch {
			case refusal.Reason == "SERVER_TOKEN_MISMATCH":
				return
			case refusal.Reason == "MOVED" && c.follow(redirectOf(refusal)):
				if followed++; followed%(hops+1) != 0 {
					continue
				}
			case refusal.Reason == "MOVED":
				c.locate(ctx, name)
			case refusal.away():
				c.failed(address)
				c.locate(ctx, name)
			}
			if sleep(ctx, wait.next(refusal.After)) != nil {
				return
			}
		}
	}()
	return views
}

// watch runs one stream until it ends.
func (c *Client) watch(ctx context.Context, address, name string, views chan View, wait *waits) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, token := c.reach(address)
	var silent atomic.Bool
	timer := time.AfterFunc(silence, func() { silent.Store(true); cancel() })
	defer timer.Stop()
	down, err := lowwaterv1.NewWatermarkServiceClient(conn).Watch(ctx, &lowwaterv1.WatchRequest{ServerToken: token, Computations: []string{name}})
	if err != nil {
		return err
	}
	for {
		message, err := down.Recv()
		if silent.Load() {
			return &Refusal{Reason: "UNAVAILABLE", Message: "no beat came", Unknown: true}
		}
		if err != nil {
			return err
		}
		timer.Reset(silence)
		if err := c.check(message.GetServerToken()); err != nil {
			return err
		}
		for _, each := range message.GetWatermarks() {
			view, changed, fresh := c.admit(each)
			if !fresh {
				return &Refusal{Reason: "UNAVAILABLE", Message: "a shard that was replaced has answered", Unknown: true}
			}
			wait.times = 0
			if changed {
				show(views, view)
			}
		}
		for _, redirect := range message.GetRedirects() {
			return moved(redirect)
		}
		if away := message.GetGoAway(); away != nil {
			after := time.Duration(away.GetRetryAfterMillis()) * time.Millisecond
			return &Refusal{Reason: "SHUTTING_DOWN", Message: away.GetReason(), After: after}
		}
	}
}

// show hands over the newest value in place of one that nobody has taken.
func show(views chan View, view View) {
	for {
		select {
		case views <- view:
			return
		default:
		}
		select {
		case <-views:
		default:
		}
	}
}
