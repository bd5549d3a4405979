//go:build linux

package supervised

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/socket"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// A stage is a state directory on which a test acts as supervisors and other providers.
type stage struct {
	t  *testing.T
	p  *Provider
	id string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	dir, err := statedir.Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	p := &Provider{dir: dir, log: slog.New(slog.DiscardHandler)}
	p.events = newEvents(p)
	t.Cleanup(p.events.close)
	s := &stage{t, p, atoll.NewID()}
	lock, err := dir.Make(s.id)
	s.must(err)
	lock.Release()
	return s
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// firstStart is the time at which the sandbox was started for the first time.
var firstStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// writeState writes the sandbox's record: run counts its supervisors.
func (s *stage) writeState(state atoll.State, run int) {
	s.t.Helper()
	st := atoll.Status{ID: s.id, Spec: atoll.Spec{ID: s.id}, State: state, Ready: state == atoll.StateRunning}
	if run > 0 {
		st.Started = firstStart.Add(time.Duration(run) * time.Hour)
	}
	s.must(s.p.dir.Write(&statedir.Record{Status: st, Supervisor: statedir.Identity{PID: run}}))
}

// serveAsSupervisor takes the lock that says that a supervisor lives, and serves its
// socket. The returned channel gets each connection once it was served.
func (s *stage) serveAsSupervisor() (served <-chan net.Conn) {
	s.t.Helper()
	lock, err := s.p.dir.LockSupervisor(s.id)
	s.must(err)
	var l net.Listener
	s.must(socket.Short(filepath.Join(s.p.dir.Sandbox(s.id), supervisor.SocketName), func(short string) (err error) {
		l, err = net.Listen("unix", short)
		return err
	}))
	idle := make(chan net.Conn, 10)
	server := &http.Server{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { s.t.Error("a look counts as use of the sandbox") }),
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateIdle {
				idle <- conn
			}
		},
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	s.t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			s.t.Error(err)
		}
		lock.Release()
	})
	return idle
}

// watchStates returns a channel with the states of the sandbox that come after the replay.
func (s *stage) watchStates() <-chan atoll.Status {
	s.t.Helper()
	states, synced := make(chan atoll.Status, 100), make(chan bool)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		live := false
		for ev := range s.p.Watch(ctx) {
			switch {
			case ev.Type == atoll.EventSynced:
				live = true
				close(synced)
			case live:
				states <- ev.Status
			}
		}
	}()
	s.t.Cleanup(func() { cancel(); <-done })
	<-synced
	return states
}

var waitLimit = testenv.Scale(20 * time.Second)

func receive[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(waitLimit):
		t.Fatalf("%s did not come in time", what)
	}
	return v
}

// Changes of other processes between two looks are published as well: a sandbox that was
// started has run, and one that was started again was stopped before.
func TestEventsBetweenLooks(t *testing.T) {
	type look struct {
		state atoll.State
		run   int
	}
	for _, tt := range []struct {
		name        string
		first, next look
		want        string
	}{
		{"nothing", look{atoll.StateRunning, 1}, look{atoll.StateRunning, 1}, ""},
		{"stop", look{atoll.StateRunning, 1}, look{atoll.StateStopped, 1}, "stopped"},
		{"start", look{atoll.StateStopped, 1}, look{atoll.StateRunning, 2}, "running"},
		{"stop and start", look{atoll.StateRunning, 1}, look{atoll.StateRunning, 2}, "stopped running"},
		{"start and stop", look{atoll.StateStopped, 1}, look{atoll.StateStopped, 2}, "running stopped"},
		{"first start and stop", look{atoll.StateCreated, 0}, look{atoll.StateStopped, 1}, "running stopped"},
		{"stop, start and pause", look{atoll.StatePaused, 1}, look{atoll.StatePaused, 2}, "stopped running paused"},
		{"resume, stop, start and failure", look{atoll.StatePaused, 1}, look{atoll.StateFailed, 2}, "stopped running failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStage(t)
			s.serveAsSupervisor()
			s.writeState(tt.first.state, tt.first.run)
			states := s.watchStates()
			s.writeState(tt.next.state, tt.next.run)
			s.p.events.publishChanges(s.id)
			s.must(os.Remove(s.p.dir.Record(s.id)))
			var got []string
			for st := range states {
				if got = append(got, string(st.State)); st.State == atoll.StateRemoved {
					break
				}
				if st.Ready != (st.State == atoll.StateRunning) {
					t.Errorf("%s and ready %v", st.State, st.Ready)
				}
			}
			if want := strings.TrimSpace(tt.want + " removed"); strings.Join(got, " ") != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// A supervisor that closed its connection may take a while to end: the watcher waits for
// its end, but neither while the next one lives, nor after Close.
func TestEventsOfSupervisorsThatLinger(t *testing.T) {
	s := newStage(t)
	served := s.serveAsSupervisor()
	s.writeState(atoll.StateRunning, 1)
	states := s.watchStates()
	first := receive(t, "a connection", served)
	s.must(first.Close())
	s.writeState(atoll.StateRunning, 2) // the next one starts before anybody saw that there was none
	if st := receive(t, "the end of the first", states); st.State != atoll.StateStopped || st.Stopped.IsZero() {
		t.Errorf("the end of the first: %s, stopped %v", st.State, st.Stopped)
	}
	if st := receive(t, "the next", states); st.State != atoll.StateRunning || !st.Started.After(firstStart.Add(time.Hour)) {
		t.Errorf("the next: %s, started %v", st.State, st.Started)
	}
	second := receive(t, "a connection to the next supervisor", served)
	s.must(second.Close()) // it still lives
	closed := make(chan struct{})
	go func() { defer close(closed); s.p.events.close() }()
	receive(t, "Close", closed)
}

// An error of the list of records is not an empty list.
func TestWatchWithoutList(t *testing.T) {
	s := newStage(t)
	s.writeState(atoll.StateCreated, 0)
	s.watchStates()
	records := filepath.Dir(s.p.dir.Record(s.id))
	s.must(os.Rename(records, records+".gone"))
	n := 0
	for ev, err := range s.p.Watch(t.Context()) {
		if n++; n > 1 || atoll.KindOf(err) != atoll.ErrInternal {
			t.Errorf("%d: %+v, %v, want one error: that of the list", n, ev, err)
		}
	}
	if n == 0 {
		t.Error("no error")
	}
}

// A Watch may succeed after another one failed to begin.
func TestWatchTriesAgain(t *testing.T) {
	s := newStage(t)
	records := filepath.Dir(s.p.dir.Record(s.id))
	s.must(os.Rename(records, records+".gone"))
	for _, err := range s.p.Watch(t.Context()) {
		if atoll.KindOf(err) != atoll.ErrUnavailable {
			t.Errorf("watch of nothing: %v", err)
		}
	}
	s.must(os.Rename(records+".gone", records))
	s.watchStates()
}
