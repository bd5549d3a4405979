package tests3

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"
)

// A Fault tells a proxy how to treat a request. With the zero Fault it forwards the request.
type Fault struct {
	Status     int           // the proxy answers with it, and does not forward the request
	Code       string        // S3 error code of that answer
	CutRequest int64         // the connection breaks after so many bytes of the request
	CutAnswer  int64         // or after so many bytes of the answer's body
	Lose       bool          // the server gets the request, and the connection breaks before the answer
	Stall      bool          // the connection stalls instead of breaking
	Delay      time.Duration // before anything else
	Slow       time.Duration // between pieces of the answer
	Then       func()        // called before the connection breaks
	Header     func(http.Header)
}

// A Proxy forwards requests to a server and simulates faults of a network.
type Proxy struct {
	Endpoint string // of the proxy
	Target   *url.URL
	client   http.Transport

	mu    sync.Mutex
	plan  func(r *http.Request, n int) Fault
	count int // requests since Set
	done  chan struct{}
}

// NewProxy returns a proxy for the server at target, without faults. It runs until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Target: u, done: make(chan struct{})}
	p.client.DisableKeepAlives = true
	server := httptest.NewServer(p)
	p.Endpoint = server.URL
	t.Cleanup(func() {
		close(p.done)
		server.CloseClientConnections()
		server.Close()
		p.client.CloseIdleConnections()
	})
	return p
}

// Set makes the proxy call plan for each request from now on. n counts them from 1.
func (p *Proxy) Set(plan func(r *http.Request, n int) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan, p.count = plan, 0
}

// First sets the fault of the first n requests with a method.
func (p *Proxy) First(n int, method string, f Fault) {
	seen := 0
	p.Set(func(r *http.Request, _ int) Fault {
		if r.Method != method || seen >= n {
			return Fault{}
		}
		seen++
		return f
	})
}

// EveryNth makes the proxy answer each n-th request with a status.
func (p *Proxy) EveryNth(n, status int) {
	p.Set(func(_ *http.Request, i int) Fault {
		if i%n == 0 {
			return Fault{Status: status}
		}
		return Fault{}
	})
}

// Requests returns the number of requests since the last Set.
func (p *Proxy) Requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

func (p *Proxy) nextFault(r *http.Request) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	if p.plan == nil {
		return Fault{}
	}
	return p.plan(r, p.count)
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := p.nextFault(r)
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-p.done:
		case <-r.Context().Done():
		}
	}
	if f.Status != 0 {
		code := f.Code
		if code == "" {
			code = "SlowDown"
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(f.Status)
		fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>as planned</Message></Error>`, code)
		return
	}
	if f.CutRequest > 0 {
		_, _ = io.CopyN(io.Discard, r.Body, f.CutRequest)
		p.breakConn(w, r, f)
		return
	}
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = p.Target.Scheme, p.Target.Host, ""
	if f.Header != nil {
		f.Header(out.Header)
	}
	answer, err := p.client.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer answer.Body.Close()
	if f.Lose {
		_, _ = io.Copy(io.Discard, answer.Body)
		p.breakConn(w, r, f)
		return
	}
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	switch {
	case f.CutAnswer > 0:
		_, _ = io.CopyN(w, answer.Body, f.CutAnswer)
		_ = http.NewResponseController(w).Flush()
		p.breakConn(w, r, f)
	case f.Slow > 0:
		for {
			if n, err := io.CopyN(w, answer.Body, 64<<10); n == 0 || err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			time.Sleep(f.Slow)
		}
	default:
		_, _ = io.Copy(w, answer.Body)
	}
}

// breakConn breaks the connection, or stalls it until the client gives up.
func (p *Proxy) breakConn(w http.ResponseWriter, r *http.Request, f Fault) {
	if f.Then != nil {
		f.Then()
	}
	if f.Stall {
		select {
		case <-p.done:
		case <-r.Context().Done():
		}
	}
	if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = c.(*net.TCPConn).SetLinger(0) // send a reset
		c.Close()
		return
	}
	panic(http.ErrAbortHandler)
}
