package remote_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/agent/jobs/jobstest"
	"github.com/seed46cd37a8/atoll/agent/jobs/remote"
	"github.com/seed46cd37a8/atoll/provider/local"
)

// A probing Backend reports that it works.
type probing struct{ jobs.Backend }

func (probing) Probe(context.Context) atoll.Probe {
	return atoll.Probe{OK: true, Notes: []string{"as ever"}}
}

// serveBackend serves b over HTTP, and returns a client.
func serveBackend(t *testing.T, b remote.Backend) (*remote.Client, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(remote.Handler(b))
	t.Cleanup(server.Close)
	h := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", server.Listener.Addr().String())
	}}}
	c := remote.NewClient(h, func() error { return nil })
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, server
}

// Results are equal when the backend is in another program.
func TestConformance(t *testing.T) {
	p, err := local.New(local.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	c, _ := serveBackend(t, probing{jobs.Sandboxes(p, nil)})
	jobstest.Run(t, c, jobstest.Options{
		Open: true,
		Held: func(t *testing.T) (held []string) {
			all, err := p.List(context.Background(), atoll.Filter{})
			if err != nil {
				t.Fatal(err)
			}
			for _, st := range all {
				held = append(held, st.ID)
			}
			return held
		},
	})
}

// A waiting Backend runs programs that report, and end when they are killed.
type waiting struct{ killed chan struct{} }

func (w waiting) Run(ctx context.Context, job *jobs.Job) (*jobs.Result, error) {
	job.Report(time.Second, "so far")
	<-ctx.Done()
	close(w.killed)
	return nil, ctx.Err()
}
func (waiting) Close() error                      { return nil }
func (waiting) Probe(context.Context) atoll.Probe { return atoll.Probe{Reason: "it waits"} }

// Reports arrive while a program runs; a cancelled Run returns after its end.
func TestReportsAndCancel(t *testing.T) {
	w := waiting{make(chan struct{})}
	c, _ := serveBackend(t, w)
	ctx, cancel := context.WithCancel(t.Context())
	var told []string
	_, err := c.Run(ctx, &jobs.Job{Report: func(took time.Duration, line string) {
		told = append(told, took.String()+" "+line)
		cancel()
	}})
	if err != context.Canceled || len(told) != 1 || told[0] != "1s so far" {
		t.Errorf("Run: %v, told %q", err, told)
	}
	select {
	case <-w.killed:
	default:
		t.Error("Run returned before the program was killed")
	}
	if _, err := c.Run(ctx, &jobs.Job{}); err != context.Canceled {
		t.Errorf("Run with a context that has ended: %v", err)
	}
	if p := c.Probe(t.Context()); p.OK || p.Reason != "it waits" {
		t.Errorf("Probe: %+v", p)
	}
}

// If the program vanishes, during a job or after it, the error is ErrUnavailable.
func TestServerIsGone(t *testing.T) {
	w := waiting{make(chan struct{})}
	c, server := serveBackend(t, w)
	_, err := c.Run(t.Context(), &jobs.Job{Report: func(time.Duration, string) { server.CloseClientConnections() }})
	if !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("Run: %v, want ErrUnavailable", err)
	}
	<-w.killed
	server.Close()
	if _, err := c.Run(t.Context(), &jobs.Job{}); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("Run of nobody: %v, want ErrUnavailable", err)
	}
	if p := c.Probe(t.Context()); p.OK || !strings.Contains(p.Reason, "refused") {
		t.Errorf("Probe of nobody: %+v", p)
	}
}
