package docker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// against returns a provider of what stands in for an engine.
func against(t *testing.T, engine http.Handler) *Provider {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(engine)
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	p, err := New(Options{Dir: t.TempDir(), Plain: true, Host: "unix://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Close does not wait for an engine that does not answer.
func TestCloseWithoutAnswer(t *testing.T) {
	asked := make(chan struct{}, 100)
	p := against(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/containers/") && !strings.HasSuffix(r.URL.Path, "/containers/json") {
			asked <- struct{}{}
		}
		if strings.HasSuffix(r.URL.Path, "/_ping") {
			w.Header().Set("Api-Version", "1.45")
			return
		}
		<-r.Context().Done()
	}))
	p.opts.Slow = func(context.Context) int { return int(4 * testenv.Slowness()) } // a visit lasts longer than the test waits, unless Close ends it
	id := atoll.NewID()
	ctx, cancel := context.WithCancel(t.Context())
	tried := make(chan error, 1)
	go func() {
		_, err := (&sandbox{p, id}).Exec(ctx, &atoll.Command{Args: []string{"true"}})
		tried <- err
	}()
	<-asked
	cancel()
	if err := <-tried; !errors.Is(err, context.Canceled) {
		t.Errorf("Exec: %v", err)
	}
	go func() {
		_, err := (&sandbox{p, id}).Exec(t.Context(), &atoll.Command{Args: []string{"true"}})
		tried <- err
	}()
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(testenv.Scale(connectTimeout)):
		t.Error("Close waits for what nobody waits for any more")
	}
	if err := <-tried; atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("Exec while it is closed: %v", err)
	}
}

// An engine that is killed within its answer is one that is not to be had, and may be
// asked again.
func TestEngineBreaksOff(t *testing.T) {
	p := against(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/_ping") {
			w.Header().Set("Api-Version", "1.45")
			return
		}
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte(`[{"Id": "`))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer p.Close()
	if _, err := p.List(t.Context(), atoll.Filter{}); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("List: %v, of kind %q", err, atoll.KindOf(err))
	}
}

// An engine that tells of events and cannot list containers is not asked for one more
// stream of events each time.
func TestOneStreamOfEvents(t *testing.T) {
	var open, most atomic.Int64
	again := make(chan struct{}, 100)
	engine := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/events"):
			most.Store(max(most.Load(), open.Add(1)))
			defer open.Add(-1)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			again <- struct{}{}
			<-r.Context().Done()
		case strings.HasSuffix(r.URL.Path, "/json"):
			http.Error(w, `{"message": "not now"}`, http.StatusInternalServerError)
		default:
			w.Header().Set("Api-Version", "1.45")
		}
	})
	p := against(t, engine)
	defer p.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range p.Watch(ctx) {
		if atoll.KindOf(err) != atoll.ErrInternal {
			t.Errorf("Watch: %v", err)
		}
		break
	}
	for range 3 {
		<-again
	}
	if most.Load() > 1 {
		t.Errorf("there were %d streams of events at once", most.Load())
	}
}
