package gateway

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/seed46cd37a8/atoll"
)

// sendRaw sends text inside of TLS with HTTP/1, and returns what comes back.
func (b *box) sendRaw(t *testing.T, name, text string) string {
	t.Helper()
	c, err := tls.Dial("tcp", b.address, &tls.Config{RootCAs: b.roots, ServerName: name, NextProtos: []string{alpnHTTP1}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	all, _ := io.ReadAll(c)
	return string(all)
}

// newHead returns the head of a request of HTTP/1, after which the connection ends.
func newHead(line, host string, headers ...string) string {
	return line + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
}

// A rawHTTP2 is a client of HTTP/2 that can send any header.
type rawHTTP2 struct {
	*http2.Framer
	conn   *tls.Conn
	header bytes.Buffer
	enc    *hpack.Encoder
}

func (b *box) dialHTTP2(t *testing.T, name string, settings ...http2.Setting) *rawHTTP2 {
	t.Helper()
	c, err := tls.Dial("tcp", b.address, &tls.Config{RootCAs: b.roots, ServerName: name, NextProtos: []string{alpnHTTP2}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(deadline))
	h := &rawHTTP2{Framer: http2.NewFramer(c, c), conn: c}
	h.enc = hpack.NewEncoder(&h.header)
	if err := h.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return h
}

// sendHead sends a request with names and values of its header.
func (h *rawHTTP2) sendHead(id uint32, fields ...string) {
	h.header.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = h.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	rest := h.header.Bytes()
	for first := true; first || len(rest) > 0; first = false {
		n := min(len(rest), 16<<10)
		if first {
			_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: rest[:n], EndStream: true, EndHeaders: n == len(rest)})
		} else {
			_ = h.WriteContinuation(id, n == len(rest), rest[:n])
		}
		rest = rest[n:]
	}
}

// The server gets the path that the rules have seen, or no request.
func TestTargets(t *testing.T) {
	b := newBox(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"GET good.example/a", "other.example"}, Deny: []string{"other.example/x", "DELETE other.example"}}, nil, nil)
	for line, want := range map[string]string{
		"good.example GET http:/a/b://z/secret":                 "",
		"good.example GET http:/a://z/../secret":                "",
		"good.example GET https://good.example/a/b?x=1":         "/a/b?x=1",
		"good.example GET http://good.example/b":                "",
		"good.example GET /a/%252e%252e/secret":                 "",
		"good.example GET /a/..%00/secret":                      "",
		"good.example GET /a/%c0%ae%c0%ae/secret":               "",
		"other.example GET q:w://z/x/y":                         "",
		"other.example GET https:/q://z/x":                      "",
		"other.example GET /x#y":                                "",
		"other.example GET https://other.example?y":             "/?y",
		"other.example GET https://other.example":               "/",
		"other.example GET *":                                   "",
		"other.example delete /y":                               "",
		"other.example POST /y?_method=delete":                  "",
		"other.example POST /y\nX_HTTP_Method_Override: DELETE": "",
		"other.example POST /y\nX-HTTP-Method: GET, DELETE":     "",
		"other.example POST /y\nX-Original-URL: /x":             "",
		"other.example GET /y\nX-Rewrite-URL: /x":               "",
		"other.example GET /z/%c3%a4":                           "/z/%c3%a4",
	} {
		host, request, _ := strings.Cut(line, " ")
		request, header, _ := strings.Cut(request, "\n")
		var headers []string
		if header != "" {
			headers = []string{header}
		}
		got := b.sendRaw(t, host, newHead(request, host, headers...))
		if want == "" && (strings.HasPrefix(got, "HTTP/1.1 200") || got == "") {
			t.Errorf("%q passes: %q", line, got)
		}
		if want != "" && !strings.Contains(got, " "+host+" "+want+" ") {
			t.Errorf("%q: got %q, want %s at the server", line, got, want)
		}
	}
	h := b.dialHTTP2(t, "other.example")
	paths := []string{"/x y", "/x#y", "/x HTTP/1.1", "q:w://z/x", "https://other.example/y", "*", "/y"}
	for i, p := range paths {
		h.sendHead(uint32(i*2+1), ":method", "GET", ":scheme", "https", ":authority", "other.example", ":path", p)
	}
	for ended := 0; ended < len(paths); {
		f, err := h.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		header := f.Header()
		if d, ok := f.(*http2.DataFrame); ok && len(d.Data()) > 0 {
			text, last := string(d.Data()), header.StreamID == uint32(len(paths)*2-1)
			if passed := !strings.HasPrefix(text, "Atoll refused"); passed != last {
				t.Errorf("%q: got %q", paths[header.StreamID/2], text)
			}
		}
		if _, reset := f.(*http2.RSTStreamFrame); reset || header.Flags.Has(http2.FlagDataEndStream) && header.Type != http2.FrameSettings && header.Type != http2.FramePing {
			ended++
		}
	}
}

// The value of a secret comes back nowhere, whatever part of a response has it, and a program cannot ask for it in parts.
func TestReturnedValues(t *testing.T) {
	b := newBox(t, atoll.Network{Mode: atoll.NetworkEgress, Rules: []atoll.NetworkRule{
		{Match: "good.example/echo", Redact: true}, {Match: "good.example", SetHeaders: map[string]string{"X-Restrict": "tenant-1"}},
	}}, []atoll.Secret{keySecret}, func(*box) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			key := r.Header.Get("X-Key")
			switch r.URL.Path {
			case "/early":
				w.Header().Set("Link", key)
				w.WriteHeader(http.StatusEarlyHints)
				w.Header().Del("Link")
			case "/trailer":
				w.Header().Set("Trailer", "X-T")
				_, _ = io.WriteString(w, "body")
				w.Header().Set("X-T", key)
				return
			case "/name":
				w.Header()[http.CanonicalHeaderKey("X-"+key)] = []string{"1"}
			case "/escaped":
				w.Header().Set("Location", "/login?back="+key)
			case "/echo/range":
				http.ServeContent(w, r, "x.txt", time.Time{}, strings.NewReader("value="+key+";"))
				return
			case "/echo/part":
				w.Header().Set("Content-Range", "bytes 0-1/2")
				w.WriteHeader(http.StatusPartialContent)
			case "/echo/encoded":
				w.Header()["Content-Encoding"] = []string{"identity", "gzip"}
			case "/echo":
			default:
				fmt.Fprintf(w, "restrict=%q %q", r.Header["X-Restrict"], r.Header["X_restrict"])
				return
			}
			_, _ = io.WriteString(w, "body "+r.Header.Get("X-Key"))
		})
	})
	for _, tt := range []struct {
		path, want string
		headers    []string
	}{
		{"/early", "HTTP/1.1 103 Early Hints\r\nLink: " + fakeKey, nil},
		{"/trailer", "X-T: " + fakeKey, nil},
		{"/name", "HTTP/1.1 200", nil},
		{"/escaped", "back=" + fakeKey, nil},
		{"/echo", "body " + fakeKey, nil},
		{"/echo/range", "value=" + fakeKey + ";", []string{"Range: bytes=0-15", "If-Range: x"}},
		{"/echo/part", "of which only a part came", nil},
		{"/echo/encoded", "or which is encoded", nil},
		{"/echo;a=b", "servers read GET /echo;a=b in several ways", nil},
		{"/x/../echo", "in several ways", nil},
		{"/other", `restrict=["tenant-1"] []`, []string{"X-Restrict: mine", "Connection: X-Restrict", "X_Restrict: mine"}},
	} {
		got := b.sendRaw(t, "good.example", newHead("GET "+tt.path, "good.example", append(tt.headers, "X-Key: "+fakeKey, "TE: trailers")...))
		if !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.path, got, tt.want)
		}
		_, body, _ := strings.Cut(got, "\r\n\r\n")
		head := strings.TrimSuffix(got, body)
		if leaks := strings.Contains(strings.ToLower(head), strings.ToLower(realKey)); leaks || strings.HasPrefix(tt.path, "/echo") && strings.Contains(body, realKey) {
			t.Errorf("%s: the response has the value: %q", tt.path, got)
		}
	}
	for _, name := range []string{"User-Agent", "X-Forwarded-Host", "Origin", "Accept-Language"} {
		got := b.sendRaw(t, "good.example", newHead("GET /", "good.example", name+": "+fakeKey))
		if !strings.Contains(got, "is in a header that servers repeat") {
			t.Errorf("%s takes a value: %q", name, got)
		}
	}
}

// A redacted stream holds back the same number of bytes, whether they begin a value or not.
func TestRedactedHoldsBack(t *testing.T) {
	body, server := io.Pipe()
	b := newRedacted(body, []swap{{"0123456789", "placeholder"}})
	go func() {
		_, _ = io.WriteString(server, "xxxxxxxxxxxxxxxxxxxx")
		_, _ = io.WriteString(server, "!012345678")
		_, _ = io.WriteString(server, "9abcdefghi")
		server.Close()
	}()
	p := make([]byte, 100)
	for _, want := range []string{"xxxxxxxxxxx", "xxxxxxxxx!", "placeholder"} {
		if n, err := b.Read(p); string(p[:n]) != want || err != nil {
			t.Errorf("got %q, %v, want %q", p[:n], err, want)
		}
	}
	if rest, err := io.ReadAll(b); string(rest) != "abcdefghi" || err != nil {
		t.Errorf("the rest is %q, %v", rest, err)
	}
}

// A redirect does not lead out of the path to which it goes.
func TestRedirectedPaths(t *testing.T) {
	b := newBox(t, atoll.Network{Mode: atoll.NetworkEgress, Rules: []atoll.NetworkRule{{Match: "good.example", Redirect: "https://mirror.example/cache"}}}, []atoll.Secret{keySecret}, nil)
	for line, want := range map[string]string{
		"GET /x": "mirror.example /cache/x", "GET //evil/x": "mirror.example /cache//evil/x",
		"GET /../admin": "lead out", "GET /%2e%2e/admin": "lead out", "OPTIONS *": "lead out",
	} {
		if got := b.sendRaw(t, "good.example", newHead(line, "good.example")); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

// No event has the text of a response that is not valid.
func TestFailures(t *testing.T) {
	b := newBox(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"GET good.example/a"}}, []atoll.Secret{keySecret}, func(*box) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nbad key "+r.Header.Get("X-Key")+"\r\n\r\n")
		})
	})
	b.sendRaw(t, "good.example", newHead("GET /a", "good.example", "X-Key: "+fakeKey))
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.events) != 1 || b.events[0].Verdict != atoll.NetworkFailed || b.events[0].Reason != "the server did not speak HTTP as it should" {
		t.Errorf("got %+v", b.events)
	}
}

// Headers do not take much memory, also if a client waits for ever.
func TestHeadersAreBounded(t *testing.T) {
	b := newBox(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"GET good.example/a"}}, nil, nil)
	var many []string
	for i := range maxFields + 10 {
		many = append(many, fmt.Sprintf("X-%d: 1", i))
	}
	if got := b.sendRaw(t, "good.example", newHead("GET /a", "good.example", many...)); !strings.HasPrefix(got, "HTTP/1.1 431") {
		t.Errorf("many headers: got %q", got[:min(len(got), 200)])
	}
	before := heapSize()
	h := b.dialHTTP2(t, "good.example", http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := h.ReadFrame(); err != nil {
				return
			}
		}
	}()
	fields := []string{":method", "GET", ":scheme", "https", ":authority", "good.example", ":path", "/a"}
	for range 29000 {
		fields = append(fields, "a", "")
	}
	for id := range maxStreams {
		h.sendHead(uint32(id*2+1), fields...)
	}
	const most = 64 << 20
	if grown := int64(heapSize()) - int64(before); grown > most {
		t.Errorf("the headers of one connection take %d MiB", grown>>20)
	}
	h.conn.Close()
	<-done
}

func heapSize() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
