// Package remote runs jobs with a Backend in another program, over HTTP.
package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/server/api"
)

// A Backend is a jobs.Backend that can report whether it works.
type Backend interface {
	jobs.Backend
	Probe(ctx context.Context) atoll.Probe
}

// A line is one line of the answer to a job.
type line struct {
	Report *report         `json:"report,omitempty"`
	Result *jobs.Result    `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// A report is a call of a Job's Report.
type report struct {
	Took time.Duration `json:"took"` // in nanoseconds
	Line string        `json:"line"`
}

// Handler serves b.
func Handler(b Backend) http.Handler {
	s := &server{backend: b, jobs: map[string]context.CancelFunc{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /jobs/{id}", s.serveJob)
	mux.HandleFunc("DELETE /jobs/{id}", s.cancelJob)
	mux.HandleFunc("GET /probe", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(b.Probe(r.Context())) // a caller that is gone needs no answer
	})
	return mux
}

// A server is the state of a Handler.
type server struct {
	backend Backend

	mu   sync.Mutex
	jobs map[string]context.CancelFunc // running jobs, by id
}

// serveJob runs the job in the request's body.
func (s *server) serveJob(w http.ResponseWriter, r *http.Request) {
	var mu sync.Mutex
	answer := json.NewEncoder(w)
	send := func(l line) {
		mu.Lock()
		defer mu.Unlock()
		_ = answer.Encode(l) // a caller that is gone ends the request's context
		_ = http.NewResponseController(w).Flush()
	}
	var job jobs.Job
	if err := json.NewDecoder(r.Body).Decode(&job); err != nil {
		send(line{Error: api.MarshalError(atoll.E("run", "", atoll.ErrInvalid, err))})
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	id := r.PathValue("id")
	s.mu.Lock()
	s.jobs[id] = cancel
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.jobs, id)
		s.mu.Unlock()
	}()
	job.Report = func(took time.Duration, text string) { send(line{Report: &report{took, text}}) }
	result, err := s.backend.Run(ctx, &job)
	if err != nil {
		send(line{Error: api.MarshalError(err)})
		return
	}
	send(line{Result: result})
}

// cancelJob kills a job. It does nothing if the job has ended.
func (s *server) cancelJob(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	cancel := s.jobs[r.PathValue("id")]
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	w.WriteHeader(http.StatusNoContent)
}

// A Client is a Backend that uses the Handler of another program.
type Client struct {
	http  *http.Client
	close func() error
}

// NewClient returns a Client whose requests h sends to the Handler. Close calls close.
func NewClient(h *http.Client, close func() error) *Client { return &Client{h, close} }

// killTime limits the time until a cancelled job ends.
const killTime = time.Minute

// Run implements jobs.Backend.
func (c *Client) Run(ctx context.Context, job *jobs.Job) (*jobs.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	body, err := json.Marshal(job)
	if err != nil {
		return nil, atoll.E("run", "", atoll.ErrInvalid, err)
	}
	path := "/jobs/" + rand.Text()
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // of the request, which ends when the job is gone
	defer end()
	stop := context.AfterFunc(ctx, func() {
		late := time.AfterFunc(killTime, end)
		defer late.Stop()
		if resp, err := c.sendRequest(life, http.MethodDelete, path, nil); err == nil {
			resp.Body.Close()
			<-life.Done() // the answer has arrived, or killTime is over
			return
		}
		end()
	})
	defer stop()
	result, err := c.runJob(life, path, body, job.Report)
	if ctx.Err() != nil && err != nil {
		return nil, ctx.Err()
	}
	return result, err
}

// runJob sends a job and reads its answer.
func (c *Client) runJob(ctx context.Context, path string, body []byte, tell func(took time.Duration, line string)) (*jobs.Result, error) {
	resp, err := c.sendRequest(ctx, http.MethodPost, path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	for answer := json.NewDecoder(resp.Body); ; {
		var l line
		err := answer.Decode(&l)
		switch {
		case err != nil:
			return nil, atoll.Errorf("run", "", atoll.ErrUnavailable, "the backend's program broke off: %w", err)
		case l.Error != nil:
			return nil, api.UnmarshalError(l.Error, "run", "")
		case l.Result != nil:
			return l.Result, nil
		case l.Report != nil && tell != nil:
			tell(l.Report.Took, l.Report.Line)
		}
	}
}

// Probe reports whether the backend works. An unreachable one doesn't.
func (c *Client) Probe(ctx context.Context) atoll.Probe {
	resp, err := c.sendRequest(ctx, http.MethodGet, "/probe", nil)
	if err != nil {
		return atoll.Probe{Reason: err.Error()}
	}
	defer resp.Body.Close()
	var p atoll.Probe
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		return atoll.Probe{Reason: fmt.Sprintf("the backend's program broke off: %v", err)}
	}
	return p
}

// sendRequest sends a request. It returns errors of the program's start, or
// ErrUnavailable.
func (c *Client) sendRequest(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://backend"+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	var known *atoll.Error
	switch {
	case ctx.Err() != nil:
		if err == nil {
			resp.Body.Close()
		}
		return nil, ctx.Err()
	case errors.As(err, &known):
		return nil, known
	case err != nil:
		return nil, atoll.E("run", "", atoll.ErrUnavailable, err)
	}
	return resp, nil
}

// Close implements jobs.Backend.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return c.close()
}

var _ Backend = (*Client)(nil)
