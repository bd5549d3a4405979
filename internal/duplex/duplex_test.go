package duplex

import (
	"bufio"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// newProxy returns the address of a proxy to another address, and what its server logs.
func newProxy(t *testing.T, address string) (string, *lines) {
	t.Helper()
	to, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{ExpectContinueTimeout: testenv.Scale(30e9)}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ModifyResponse: func(res *http.Response) error {
			SetHeader(res.Request.Context(), res.Header)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, _ error) {
			SetHeader(r.Context(), w.Header())
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	logged := &lines{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { proxy.ServeHTTP(w, Begin(w, r)) }))
	s.Config.ErrorLog = log.New(logged, "", 0)
	s.Start()
	t.Cleanup(func() {
		s.Close()
		if text := logged.readText(); text != "" {
			t.Errorf("the server logged: %s", text)
		}
	})
	return s.URL, logged
}

// lines is a log.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) readText() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func postBody(t *testing.T, address string, body io.Reader, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", address, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		resp.Body.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return resp
}

// A body that nobody reads costs the connection, and not more.
func TestUnreadBody(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	address, _ := newProxy(t, gone.URL)
	for range 3 {
		if resp := postBody(t, address, strings.NewReader("body")); resp.StatusCode != http.StatusBadGateway || !resp.Close {
			t.Errorf("got %s, closing: %t", resp.Status, resp.Close)
		}
	}
}

// A body that has been read costs nothing, even if the response comes at once.
func TestReadBody(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	defer s.Close()
	address, _ := newProxy(t, s.URL)
	for range 500 {
		for _, body := range []io.Reader{strings.NewReader("body"), io.MultiReader(strings.NewReader("body"))} { // with a length, and without
			resp := postBody(t, address, body)
			if text, err := io.ReadAll(resp.Body); string(text) != "body" || err != nil || resp.Close {
				t.Fatalf("got %q, %v, closing: %t", text, err, resp.Close)
			}
		}
	}
}

// A response can end before the request, and a client that waits for it before it sends the body gets it.
func TestEarlyResponse(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		if r.Header.Get("Expect") == "" {
			line, _ := bufio.NewReader(r.Body).ReadString('\n')
			io.WriteString(w, "got "+line)
		} else {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
		w.Header().Set("Connection", "close")
	}))
	defer s.Close()
	address, _ := newProxy(t, s.URL)
	body, more := io.Pipe()
	defer more.Close()
	go func() { _, _ = io.WriteString(more, "hello\n") }()
	resp := postBody(t, address, body)
	if text, err := io.ReadAll(resp.Body); string(text) != "got hello\n" || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
	if resp := postBody(t, address, strings.NewReader("large"), "Expect", "100-continue"); resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("got %s", resp.Status)
	}
}
