package storetest

import (
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// RunAudit checks implementations of store.Audit. See Run for the meaning of open.
func RunAudit(t *testing.T, open func(t *testing.T, name string) store.Audit) {
	for _, tt := range []struct {
		name  string
		check func(t *testing.T, open func(name string) store.Audit)
	}{
		{"an event is read back unchanged", checkAuditRoundTrip},
		{"events are selected, in pages", checkAuditPages},
		{"a reader that continues misses no event of concurrent writers", checkAuditFollow},
		{"old events are dropped", checkAuditDrop},
		{"a missing store has no events", checkAuditEmpty},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.check(t, func(name string) store.Audit {
				s := open(t, name)
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				})
				return s
			})
		})
	}
}

func newEvent(at time.Time, project, sandbox string) store.AuditEvent {
	return store.AuditEvent{
		Time: at.UTC().Truncate(time.Millisecond), Server: "s", Account: "a " + project, Role: auth.RoleAdmin, Key: "k", KeyName: "n",
		Origin: auth.Origin{Via: "http", Address: "192.0.2.1:7", Request: "r"}, Op: "exec", Project: project, Sandbox: sandbox, Target: "t",
		Command: []string{"sh", "-c", "a\x00b"}, Kind: atoll.ErrStopped, Message: "m\x00",
	}
}

func addEvents(t *testing.T, s store.Audit, events ...store.AuditEvent) {
	t.Helper()
	if err := s.AddEvents(t.Context(), events); err != nil {
		t.Fatalf("AddEvents: %v", err)
	}
}

func readEvents(t *testing.T, s store.Audit, q store.AuditQuery) []store.AuditEvent {
	t.Helper()
	all, err := s.Events(t.Context(), q)
	if err != nil {
		t.Fatalf("Events: %v", err)
	}
	return all
}

func checkAuditRoundTrip(t *testing.T, open func(string) store.Audit) {
	a, b := open("a"), open("a")
	want := []store.AuditEvent{newEvent(storedNow(), "web", "x"), {Time: storedNow().Truncate(time.Millisecond), Op: "reconcile"}}
	addEvents(t, a, want...)
	got := readEvents(t, b, store.AuditQuery{})
	if len(got) != 2 || got[0].ID <= 0 || got[1].ID <= got[0].ID {
		t.Fatalf("%+v", got)
	}
	for i := range got {
		if !got[i].Time.Equal(want[i].Time) {
			t.Errorf("time %v, want %v", got[i].Time, want[i].Time)
		}
		got[i].ID, got[i].Time = 0, want[i].Time
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("%+v, want\n%+v", got[i], want[i])
		}
	}
}

func checkAuditPages(t *testing.T, open func(string) store.Audit) {
	s := open("a")
	begin := storedNow().Truncate(time.Millisecond)
	for i := range 10 {
		addEvents(t, s, newEvent(begin.Add(time.Duration(i)*time.Second), []string{"web", "api"}[i%2], fmt.Sprint("s", i%3)))
	}
	all := readEvents(t, s, store.AuditQuery{})
	if len(all) != 10 {
		t.Fatalf("%d events", len(all))
	}
	for name, tt := range map[string]struct {
		q    store.AuditQuery
		want []int
	}{
		"the newest":      {store.AuditQuery{Limit: 3}, []int{7, 8, 9}},
		"before those":    {store.AuditQuery{Limit: 3, Before: all[7].ID}, []int{4, 5, 6}},
		"after one":       {store.AuditQuery{Limit: 2, After: all[3].ID}, []int{4, 5}},
		"between":         {store.AuditQuery{After: all[3].ID, Before: all[6].ID}, []int{4, 5}},
		"of a project":    {store.AuditQuery{Project: "api"}, []int{1, 3, 5, 7, 9}},
		"of a sandbox":    {store.AuditQuery{Sandbox: "s2"}, []int{2, 5, 8}},
		"of an account":   {store.AuditQuery{Account: "a web", Limit: 1}, []int{8}},
		"since":           {store.AuditQuery{Since: begin.Add(8 * time.Second)}, []int{8, 9}},
		"of nobody":       {store.AuditQuery{Project: "x"}, nil},
		"after the last":  {store.AuditQuery{After: all[9].ID}, nil},
		"all of it twice": {store.AuditQuery{Project: "api", Sandbox: "s0", Since: begin}, []int{3, 9}},
	} {
		var got, want []int64
		for _, e := range readEvents(t, s, tt.q) {
			got = append(got, e.ID)
		}
		for _, i := range tt.want {
			want = append(want, all[i].ID)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func checkAuditFollow(t *testing.T, open func(string) store.Audit) {
	const writers, each = 4, 15
	reader := open("a")
	addEvents(t, reader, newEvent(storedNow(), "first", ""))
	last, seen := readEvents(t, reader, store.AuditQuery{})[0].ID, 0
	var work sync.WaitGroup
	for i := range writers {
		s := open("a")
		work.Go(func() {
			for n := range each {
				if err := s.AddEvents(t.Context(), []store.AuditEvent{newEvent(storedNow(), fmt.Sprint(i), fmt.Sprint(n)), newEvent(storedNow(), fmt.Sprint(i), fmt.Sprint(n))}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		work.Wait()
		close(ended)
	}()
	for over := false; ; {
		some := readEvents(t, reader, store.AuditQuery{After: last, Limit: 7})
		seen += len(some)
		if len(some) > 0 {
			last = some[len(some)-1].ID
			continue
		}
		if over {
			break
		}
		select {
		case <-ended:
			over = true
		case <-time.After(time.Millisecond):
		}
	}
	if seen != 2*writers*each {
		t.Errorf("the reader saw %d events, want %d", seen, 2*writers*each)
	}
}

func checkAuditDrop(t *testing.T, open func(string) store.Audit) {
	s := open("a")
	begin := storedNow()
	addEvents(t, s, newEvent(begin.Add(-time.Hour), "old", ""), newEvent(begin.Add(-3*time.Hour), "oldest", ""), newEvent(begin.Add(-2*time.Hour), "older", ""), newEvent(begin, "new", ""))
	if n, err := s.DropEvents(t.Context(), begin.Add(-time.Minute), 2); n != 2 || err != nil {
		t.Errorf("DropEvents of two: %d, %v", n, err)
	}
	if left := readEvents(t, s, store.AuditQuery{}); len(left) != 2 || left[0].Project != "old" {
		t.Errorf("events without the two oldest ones: %+v", left)
	}
	if n, err := s.DropEvents(t.Context(), begin.Add(-time.Minute), 2); n != 1 || err != nil {
		t.Errorf("DropEvents of the rest: %d, %v", n, err)
	}
	left := readEvents(t, s, store.AuditQuery{})
	if len(left) != 1 || left[0].Project != "new" {
		t.Errorf("remaining events: %+v", left)
	}
	if _, err := s.DropEvents(t.Context(), begin.Add(time.Hour), 2); err != nil {
		t.Fatal(err)
	}
	addEvents(t, s, newEvent(begin, "next", ""))
	if all := readEvents(t, s, store.AuditQuery{}); len(all) != 1 || all[0].ID <= left[0].ID {
		t.Errorf("new event after the last one was dropped: %+v, want an id above %d", all, left[0].ID)
	}
}

func checkAuditEmpty(t *testing.T, open func(string) store.Audit) {
	s := open("a")
	if all := readEvents(t, s, store.AuditQuery{}); len(all) != 0 {
		t.Errorf("Events: %+v", all)
	}
	if n, err := s.DropEvents(t.Context(), storedNow(), 2); n != 0 || err != nil {
		t.Errorf("DropEvents: %d, %v", n, err)
	}
}
