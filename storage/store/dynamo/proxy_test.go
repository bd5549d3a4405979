package dynamo

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// A fault is the treatment of a request. The zero fault forwards it.
type fault struct {
	status    int    // answers with this status, without forwarding
	code      string // error code of DynamoDB, with status
	body      string // answers with this body, without forwarding
	cut       bool   // breaks the connection, without forwarding
	lose      bool   // forwards, and breaks the connection instead of the answer
	cutAnswer bool   // forwards, and breaks the connection within the answer
	stall     bool   // waits until the client gives up, without forwarding
	before    func() // called first
}

// A proxy stands before a server and injects network faults.
type proxy struct {
	endpoint string
	target   string
	client   http.Transport

	mu   sync.Mutex
	plan func(op string, body []byte, n int) fault
	n    int      // number of requests since the last call of set
	ops  []string // their operations
	done chan struct{}
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	p := &proxy{target: target, done: make(chan struct{})}
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

// set makes plan choose the fault of each later request. n counts from 1. op is the operation, such as "PutItem".
func (p *proxy) set(plan func(op string, body []byte, n int) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan, p.n, p.ops = plan, 0, nil
}

// nth gives f to the requests first to last.
func (p *proxy) nth(first, last int, f fault) {
	p.set(func(_ string, _ []byte, n int) fault {
		if n < first || n > last {
			return fault{}
		}
		return f
	})
}

// operations returns the operations of the requests since the last call of set.
func (p *proxy) operations() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ops
}

func (p *proxy) next(r *http.Request, body []byte) fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	p.n++
	p.ops = append(p.ops, op)
	if p.plan == nil {
		return fault{}
	}
	return p.plan(op, body, p.n)
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	f := p.next(r, body)
	if f.before != nil {
		f.before()
	}
	switch {
	case f.status != 0:
		refuse(w, f.status, f.code)
		return
	case f.body != "":
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		fmt.Fprint(w, f.body)
		return
	case f.cut:
		reset(w)
		return
	case f.stall:
		select {
		case <-p.done:
		case <-r.Context().Done():
		}
		return
	}
	out, err := http.NewRequestWithContext(r.Context(), r.Method, p.target, bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	out.Header = r.Header.Clone()
	answer, err := p.client.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if f.lose {
		reset(w)
		return
	}
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	if f.cutAnswer {
		_, _ = w.Write(text[:len(text)/2])
		_ = http.NewResponseController(w).Flush()
		reset(w)
		return
	}
	_, _ = w.Write(text)
}

// refuse answers with an error of DynamoDB.
func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"as planned"}`, code)
}

// reset breaks the connection.
func reset(w http.ResponseWriter) {
	if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
		return
	}
	panic(http.ErrAbortHandler)
}
