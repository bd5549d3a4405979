package secretsource

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A value is read again after a minute. An outage leaves it for five minutes, and a denial ends it at once.
func TestCache(t *testing.T) {
	var value string
	var failure error
	reads, now := 0, time.Now()
	c := NewCache(slog.New(slog.DiscardHandler), func(context.Context, string) (atoll.SecretValue, error) {
		reads++
		return atoll.SecretValue(value), failure
	})
	c.now = func() time.Time { return now }
	outage := atoll.Errorf("secret", "", atoll.ErrUnavailable, "down")
	denial := atoll.Errorf("secret", "", atoll.ErrDenied, "no")
	c.Put("s", "given", now)
	for i, step := range []struct {
		after   time.Duration
		value   string
		failure error
		want    string
		reads   int
	}{
		{59 * time.Second, "one", nil, "given", 0},
		{time.Second, "one", nil, "one", 1},
		{59 * time.Second, "two", nil, "one", 1},
		{time.Second, "two", nil, "two", 2},
		{time.Minute, "three", outage, "two", 3},
		{9 * time.Second, "three", outage, "two", 3}, // it is not asked again so soon
		{time.Second, "three", outage, "two", 4},
		{4*time.Minute - 11*time.Second, "three", outage, "two", 5},
		{time.Second, "three", outage, "", 5},
		{10 * time.Second, "three", nil, "three", 6},
		{time.Minute, "three", denial, "", 7},
		{time.Second, "three", nil, "", 7},
		{10 * time.Second, "three", outage, "", 8}, // the value before the denial does not come back
		{10 * time.Second, "four", nil, "four", 9},
	} {
		now = now.Add(step.after)
		value, failure = step.value, step.failure
		c.Put("s", "given", now.Add(-time.Hour)) // too late
		got, err := c.Read(t.Context(), "s")
		if string(got) != step.want || (err == nil) != (step.want != "") || reads != step.reads {
			t.Errorf("step %d: got %q, %v after %d reads, want %q after %d", i, string(got), err, reads, step.want, step.reads)
		}
	}
	failure = errors.New("a fault")
	if got, err := c.Read(t.Context(), "other"); got != "" || !errors.Is(err, failure) {
		t.Errorf("another source: got %q, %v", string(got), err)
	}
}

// Many callers wait for one read.
func TestCacheReadsOnce(t *testing.T) {
	var reads atomic.Int32
	c := NewCache(slog.New(slog.DiscardHandler), func(context.Context, string) (atoll.SecretValue, error) {
		reads.Add(1)
		time.Sleep(20 * time.Millisecond)
		return "value", nil
	})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if got, err := c.Read(t.Context(), "s"); got != "value" || err != nil {
				t.Errorf("got %q, %v", string(got), err)
			}
		})
	}
	wg.Wait()
	if n := reads.Load(); n != 1 {
		t.Errorf("got %d reads, want 1", n)
	}
}
