package sweeper_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
)

func TestSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var n atomic.Int32
		due := func() time.Time { return begin.Add(5 * time.Second) }
		s := sweeper.New()
		s.Start(func(context.Context) time.Time {
			switch n.Add(1) {
			case 2:
				due = func() time.Time { return begin } // and remains due
			case 4:
				due = func() time.Time { return time.Time{} }
			}
			return due()
		})
		for _, step := range []struct {
			what string
			wait time.Duration
			want int32
		}{
			{"at once", 0, 1},
			{"nothing is due", 4 * time.Second, 1},
			{"something is due", 1050 * time.Millisecond, 2},
			{"it is overdue and waits for another program", 50*time.Millisecond + time.Nanosecond, 3},
			{"it is overdue, after a pause", 100 * time.Millisecond, 4},
			{"nothing is known", 59 * time.Second, 4},
			{"a minute has passed", time.Second, 5},
		} {
			time.Sleep(step.wait)
			synctest.Wait()
			if got := n.Load(); got != step.want {
				t.Fatalf("%s: %d sweeps, want %d", step.what, got, step.want)
			}
		}
		s.Wake()
		synctest.Wait()
		if got := n.Load(); got != 6 {
			t.Errorf("%d sweeps after Wake, want 6", got)
		}
		s.Close()
		s.Wake()
		time.Sleep(time.Hour)
		if got := n.Load(); got != 6 {
			t.Errorf("%d sweeps after Close, want 6", got)
		}
	})
}

// Close ends a running sweep and waits for it.
func TestClose(t *testing.T) {
	began, ended := make(chan struct{}), false
	s := sweeper.New()
	s.Start(func(ctx context.Context) time.Time {
		close(began)
		<-ctx.Done()
		time.Sleep(time.Millisecond)
		ended = true
		return time.Time{}
	})
	<-began
	s.Close()
	if !ended {
		t.Error("Close did not wait")
	}
}

func TestDue(t *testing.T) {
	stop := time.Now()
	at := func(d time.Duration) time.Time { return stop.Add(d) }
	for _, test := range []struct {
		name string
		st   atoll.Status
		idle bool
		want time.Time
	}{
		{"never", atoll.Status{}, false, time.Time{}},
		{"it has a TTL", atoll.Status{Expires: at(1)}, false, at(1)},
		{"it is running", atoll.Status{Spec: atoll.Spec{AutoRemove: true}}, false, time.Time{}},
		{"it has stopped", atoll.Status{Stopped: stop, Spec: atoll.Spec{AutoRemove: true}}, false, at(atoll.AutoRemoveDelay)},
		{"its TTL ends earlier", atoll.Status{Stopped: stop, Expires: at(1), Spec: atoll.Spec{AutoRemove: true}}, false, at(1)},
		{"it was idle", atoll.Status{Stopped: stop, Spec: atoll.Spec{IdleRemove: true}}, true, stop},
		{"its TTL ended earlier", atoll.Status{Stopped: stop, Expires: at(-1), Spec: atoll.Spec{IdleRemove: true}}, true, at(-1)},
		{"a caller stopped it", atoll.Status{Stopped: stop, Spec: atoll.Spec{IdleRemove: true}}, false, time.Time{}},
		{"it stays", atoll.Status{Stopped: stop}, true, time.Time{}},
	} {
		if got := sweeper.RemovalTime(&test.st, test.idle); !got.Equal(test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
