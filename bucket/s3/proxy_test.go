package s3

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// A fault is what a proxy does with a request. The zero fault passes it on.
type fault struct {
	status     int    // answers so, and does not ask
	code       string // of S3, with it
	cutRequest int64  // breaks the connection after so many bytes of the request
	cutAnswer  int64  // or of the answer, whose header is passed on
	lose       bool   // asks, and breaks the connection without an answer
	stall      bool   // does nothing more where it would break it
	slow       time.Duration
	then       func() // called where it breaks
	header     func(http.Header)
}

// A proxy stands before a server and does to its clients what networks do.
type proxy struct {
	endpoint string
	target   *url.URL
	client   http.Transport

	mu    sync.Mutex
	plan  func(r *http.Request, n int) fault
	count int // of requests since there is a plan
	done  chan struct{}
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{target: u, done: make(chan struct{})}
	p.client.DisableKeepAlives = true
	server := httptest.NewServer(p)
	p.endpoint = server.URL
	t.Cleanup(func() {
		close(p.done)
		server.CloseClientConnections()
		server.Close()
		p.client.CloseIdleConnections()
	})
	return p
}

// set has the n-th request from now on, counted from 1, get what plan says.
func (p *proxy) set(plan func(r *http.Request, n int) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan, p.count = plan, 0
}

// first gives the first n requests of a method that fault.
func (p *proxy) first(n int, method string, f fault) {
	seen := 0
	p.set(func(r *http.Request, _ int) fault {
		if r.Method != method || seen >= n {
			return fault{}
		}
		seen++
		return f
	})
}

func (p *proxy) everyNth(n, status int) {
	p.set(func(_ *http.Request, i int) fault {
		if i%n == 0 {
			return fault{status: status}
		}
		return fault{}
	})
}

func (p *proxy) requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

func (p *proxy) next(r *http.Request) fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	if p.plan == nil {
		return fault{}
	}
	return p.plan(r, p.count)
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := p.next(r)
	if f.status != 0 {
		code := f.code
		if code == "" {
			code = "SlowDown"
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(f.status)
		fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>as planned</Message></Error>`, code)
		return
	}
	if f.cutRequest > 0 {
		_, _ = io.CopyN(io.Discard, r.Body, f.cutRequest)
		p.end(w, r, f)
		return
	}
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = p.target.Scheme, p.target.Host, ""
	if f.header != nil {
		f.header(out.Header)
	}
	answer, err := p.client.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer answer.Body.Close()
	if f.lose {
		_, _ = io.Copy(io.Discard, answer.Body)
		p.end(w, r, f)
		return
	}
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	switch {
	case f.cutAnswer > 0:
		_, _ = io.CopyN(w, answer.Body, f.cutAnswer)
		_ = http.NewResponseController(w).Flush()
		p.end(w, r, f)
	case f.slow > 0:
		for {
			if n, err := io.CopyN(w, answer.Body, 64<<10); n == 0 || err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			time.Sleep(f.slow)
		}
	default:
		_, _ = io.Copy(w, answer.Body)
	}
}

// end breaks the connection, or leaves it as it is.
func (p *proxy) end(w http.ResponseWriter, r *http.Request, f fault) {
	if f.then != nil {
		f.then()
	}
	if f.stall {
		select {
		case <-p.done:
		case <-r.Context().Done():
		}
	}
	if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = c.(*net.TCPConn).SetLinger(0) // a reset, and no end
		c.Close()
		return
	}
	panic(http.ErrAbortHandler)
}

// isPart reports whether a request is one of an object in parts.
func isPart(r *http.Request, query string) bool {
	return r.URL.Query().Has(query) && !strings.Contains(r.URL.RawQuery, "list-type")
}
