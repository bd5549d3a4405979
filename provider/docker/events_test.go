package docker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// openFake returns a provider of a fake engine.
func openFake(t *testing.T, engine http.Handler) *Provider {
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

// The error for a missing sandbox is that of all providers, without the engine's text about containers.
func TestMissingSandbox(t *testing.T) {
	p := openFake(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.45")
		if !strings.HasSuffix(r.URL.Path, "/_ping") {
			http.Error(w, `{"message":"No such container: x"}`, http.StatusNotFound)
		}
	}))
	defer p.Close()
	id := atoll.NewID()
	_, err := p.Get(t.Context(), id)
	if want := atoll.E("get", id, atoll.ErrNotFound, nil).Error(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Close does not wait for an engine that does not answer.
func TestCloseWithSilentEngine(t *testing.T) {
	asked := make(chan struct{}, 100)
	p := openFake(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/containers/") && !strings.HasSuffix(r.URL.Path, "/containers/json") {
			asked <- struct{}{}
		}
		if strings.HasSuffix(r.URL.Path, "/_ping") {
			w.Header().Set("Api-Version", "1.45")
			return
		}
		<-r.Context().Done()
	}))
	p.opts.SlowFactor = func(context.Context) int { return int(4 * testenv.Slowness()) } // a connection attempt takes longer than the test waits, unless Close ends it
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
		t.Error("Close waits for a call whose caller has gone")
	}
	if err := <-tried; atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("Exec during Close: %v", err)
	}
}

// If the engine is killed while it answers, the error is ErrUnavailable: callers may try again.
func TestEngineBreaksOffAnswer(t *testing.T) {
	p := openFake(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		t.Errorf("List: %v, of kind %q, want ErrUnavailable", err, atoll.KindOf(err))
	}
}

// If the engine sends events but cannot list containers, the provider does not open more and
// more event streams.
func TestSingleEventStream(t *testing.T) {
	only := make(chan struct{}, 1) // full while a stream is open
	again := make(chan struct{}, 100)
	engine := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/events"):
			select {
			case only <- struct{}{}: // maybe late: the engine must notice that the previous stream has ended
				defer func() { <-only }()
			case <-time.After(testenv.Scale(10 * time.Second)):
				t.Error("there were two event streams at once, want 1")
			}
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
	p := openFake(t, engine)
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
}
