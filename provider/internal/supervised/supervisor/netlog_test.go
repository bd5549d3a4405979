package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func openNetLog(t *testing.T, dir string) *netLog {
	t.Helper()
	l := newNetLog(dir, func(err error) { t.Error(err) })
	t.Cleanup(l.closeFile)
	return l
}

// A flood of events costs a bounded amount of memory and disk. All are counted, and the latest are there, also for the next run.
func TestNetLogIsBounded(t *testing.T) {
	dir := t.TempDir()
	l := openNetLog(t, dir)
	const rounds, writers, each = 20, 4, 500
	for range rounds {
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := range each {
					e := atoll.NetworkEvent{Protocol: "tcp", Host: fmt.Sprintf("n%d-%d.example", w, i), Sent: 2, Received: 3, Verdict: atoll.NetworkAllowed}
					if i%2 == 0 {
						e.Verdict = atoll.NetworkRefused
					}
					l.addEvent(e)
				}
			})
		}
		wg.Wait()
		l.writeFile()
	}
	const total = rounds * writers * each
	check := func(when string, all atoll.NetworkLog) {
		t.Helper()
		n := int64(len(all.Events))
		if all.Last != total || all.First != total-n+1 || n < atoll.MaxNetworkEvents/2 || n > atoll.MaxNetworkEvents ||
			all.Allowed != total/2 || all.Refused != total/2 || all.Sent != 2*total || all.Received != 3*total {
			t.Errorf("%s: %d events from %d to %d, %d allowed, %d refused, %d sent, %d received",
				when, n, all.First, all.Last, all.Allowed, all.Refused, all.Sent, all.Received)
		}
		for i, e := range all.Events {
			if e.ID != all.First+int64(i) {
				t.Fatalf("%s: event %d has the number %d", when, i, e.ID)
			}
		}
	}
	all, _ := l.listEvents(0)
	check("in memory", all)
	l.closeFile()
	size := int64(0)
	for _, name := range []string{oldLogName, netLogName} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			size += info.Size()
		}
	}
	if size == 0 || size > 3*maxNetLog {
		t.Errorf("the files have %d bytes", size)
	}
	stored, err := LoadNetLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	check("in the files", stored)
	if some := CutNetLog(stored, total-3); len(some.Events) != 3 || some.Last != total {
		t.Errorf("cut: %+v", some)
	}
}

// A line that was cut short loses nothing but itself.
func TestNetLogAfterCrash(t *testing.T) {
	dir := t.TempDir()
	l := openNetLog(t, dir)
	l.addEvent(atoll.NetworkEvent{Protocol: "dns", Host: "a.example", Verdict: atoll.NetworkAllowed})
	l.writeFile()
	path := filepath.Join(dir, netLogName)
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"event":{"id":2,"host":"cut`); err != nil {
		t.Fatal(err)
	}
	file.Close()
	again := openNetLog(t, dir)
	again.addEvent(atoll.NetworkEvent{Protocol: "dns", Host: "b.example", Verdict: atoll.NetworkAllowed})
	again.writeFile()
	all, err := LoadNetLog(dir)
	if err != nil || len(all.Events) != 2 || all.Events[1].Host != "b.example" || all.Events[1].ID != 2 || all.Allowed != 2 {
		t.Errorf("got %+v, %v", all, err)
	}
}

// Readers wait for the next event, and no longer than they want, or the sandbox runs.
func TestNetLogWaits(t *testing.T) {
	l := openNetLog(t, t.TempDir())
	over := make(chan struct{})
	await := func(ctx context.Context, wait time.Duration) atoll.NetworkLog {
		return l.awaitEvents(ctx, over, 0, wait)
	}
	if all := await(t.Context(), time.Millisecond); len(all.Events) != 0 {
		t.Errorf("got %+v", all)
	}
	got := make(chan atoll.NetworkLog)
	go func() { got <- await(t.Context(), testenv.Scale(time.Minute)) }()
	l.addEvent(atoll.NetworkEvent{Host: "a.example"})
	if all := <-got; len(all.Events) != 1 || all.Events[0].Host != "a.example" {
		t.Errorf("got %+v", all)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.awaitEvents(ctx, over, 1, time.Hour)
	close(over)
	l.awaitEvents(t.Context(), over, 1, time.Hour)
}
