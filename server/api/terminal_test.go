package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// A terminalServer is a server with one sandbox and a token.
type terminalServer struct {
	sb      atoll.Sandbox
	handler *api.Handler
	server  *httptest.Server
	network *network
}

// A network accepts the connections of a server and can break them.
type network struct {
	net.Listener
	broken atomic.Bool   // writes fail
	silent chan struct{} // reads do not return the failure before this is closed
}

func (n *network) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	return &networkConn{c, n}, err
}

type networkConn struct {
	net.Conn
	network *network
}

func (c *networkConn) Write(b []byte) (int, error) {
	if c.network.broken.Load() {
		return 0, syscall.ECONNRESET
	}
	return c.Conn.Write(b)
}

func (c *networkConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && c.network.broken.Load() {
		<-c.network.silent
	}
	return n, err
}

const terminalToken = "a token, with / and spaces"

func withTerminalServers(t *testing.T, test func(t *testing.T, d *terminalServer)) {
	for name, open := range map[string]func(*testing.T) atoll.Provider{
		"local": openLocal, "mock": openMock,
		"over HTTP": func(t *testing.T) atoll.Provider { p := openLocal(t); return stack{overSocket(t, p), p} },
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t)
			t.Cleanup(func() { p.Close() })
			sb, err := p.Create(t.Context(), &atoll.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			h, err := api.NewHandler(p, api.Options{Tokens: map[string]auth.Account{terminalToken: {}}})
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewUnstartedServer(h)
			n := &network{Listener: server.Listener, silent: make(chan struct{})}
			server.Listener = n
			server.Start()
			t.Cleanup(server.Close)
			t.Cleanup(func() { h.Close() })
			t.Cleanup(func() { close(n.silent) })
			test(t, &terminalServer{sb, h, server, n})
		})
	}
}

// dialTerminal connects as a browser does that shows a page of origin.
func (d *terminalServer) dialTerminal(t *testing.T, query url.Values, origin string, protocols ...string) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	opts := &websocket.DialOptions{Subprotocols: protocols, HTTPHeader: http.Header{}}
	if origin != "" {
		opts.HTTPHeader.Set("Origin", origin)
	}
	ws, resp, err := websocket.Dial(t.Context(), d.server.URL+"/v1/sandboxes/"+d.sb.ID()+"/terminal?"+query.Encode(), opts)
	if err == nil {
		ws.SetReadLimit(1 << 20)
		t.Cleanup(func() { ws.CloseNow() })
	}
	return ws, resp, err
}

func withToken(token string) []string {
	return []string{api.Subprotocol, "atoll.token." + base64.RawURLEncoding.EncodeToString([]byte(token))}
}

// A terminalClient is a connection to a terminal.
type terminalClient struct {
	t       *testing.T
	ws      *websocket.Conn
	process string
	output  bytes.Buffer
	texts   []map[string]any
}

func (d *terminalServer) openTerminal(t *testing.T, query url.Values) *terminalClient {
	t.Helper()
	ws, _, err := d.dialTerminal(t, query, d.server.URL, withToken(terminalToken)...)
	if err != nil {
		t.Fatal(err)
	}
	s := &terminalClient{t: t, ws: ws}
	first := s.nextText()
	id, ok := first["process"].(string)
	if !ok {
		t.Fatalf("the first message is %v", first)
	}
	s.process = id
	return s
}

// readMessage reads one message. It returns nil at the end.
func (s *terminalClient) readMessage() map[string]any {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testenv.Scale(10*time.Second))
	defer cancel()
	typ, data, err := s.ws.Read(ctx)
	if ctx.Err() != nil {
		s.t.Fatalf("no further message; the output is %q and the texts are %v", s.output.String(), s.texts)
	}
	if err != nil {
		return nil
	}
	if typ == websocket.MessageBinary {
		s.output.Write(data)
		return map[string]any{}
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		s.t.Fatal(err)
	}
	s.texts = append(s.texts, m)
	return m
}

// nextText returns the next text message, or nil at the end.
func (s *terminalClient) nextText() map[string]any {
	s.t.Helper()
	for {
		if m := s.readMessage(); m == nil || len(m) > 0 {
			return m
		}
	}
}

// awaitOutput reads until the output contains text.
func (s *terminalClient) awaitOutput(text string) {
	s.t.Helper()
	for !strings.Contains(s.output.String(), text) {
		if s.readMessage() == nil {
			s.t.Fatalf("the terminal ended with the output %q, want %q; the texts are %v", s.output.String(), text, s.texts)
		}
	}
}

func (s *terminalClient) sendText(m map[string]any) {
	s.t.Helper()
	b, err := json.Marshal(m)
	if err == nil {
		err = s.ws.Write(s.t.Context(), websocket.MessageText, b)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *terminalClient) typeText(text string) {
	s.sendText(map[string]any{"type": "input", "data": text})
}

func (d *terminalServer) findProcess(t *testing.T, id string) atoll.Process {
	t.Helper()
	p, err := d.sb.Process(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// staysAlive reports whether the process runs for a moment longer.
func staysAlive(t *testing.T, p atoll.Process) bool {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := p.Wait(ctx)
	return err != nil
}

func TestTerminal(t *testing.T) {
	withTerminalServers(t, func(t *testing.T, d *terminalServer) {
		s := d.openTerminal(t, url.Values{"rows": {"30"}, "cols": {"100"}})
		s.typeText("stty size\r")
		s.awaitOutput("30 100")
		s.sendText(map[string]any{"type": "resize", "rows": 10, "cols": 40})
		end := time.Now().Add(testenv.Scale(10 * time.Second))
		for i := 0; !strings.Contains(s.output.String(), "10 40"); i++ { // the resize is asynchronous
			s.typeText(fmt.Sprintf("stty size; echo m''%d\r", i))
			if s.awaitOutput(fmt.Sprintf("m%d\r\n", i)); time.Now().After(end) {
				t.Fatalf("the size did not change: %q", s.output.String())
			}
		}
		if err := s.ws.Write(t.Context(), websocket.MessageBinary, []byte("echo in''binary\r")); err != nil {
			t.Fatal(err)
		}
		s.awaitOutput("inbinary")
		s.typeText("exit 5\r")
		if m := s.nextText(); m["type"] != "exit" || m["code"] != 5.0 {
			t.Errorf("the last message is %v", m)
		}
		if m := s.nextText(); m != nil {
			t.Errorf("after the last message: %v", m)
		}
	})
}

func TestTerminalSizes(t *testing.T) {
	withTerminalServers(t, func(t *testing.T, d *terminalServer) {
		for query, want := range map[string]string{"": "20 80", "rows=0&cols=0": "20 80", "rows=5&cols=200": "20 200", "rows=21&cols=79": "21 80"} {
			q, _ := url.ParseQuery(query)
			s := d.openTerminal(t, q)
			s.typeText("stty size\r")
			s.awaitOutput(want)
		}
		for _, query := range []string{"rows=x", "rows=-1", "cols=65536", "from=1", "process=main&user=x", "root=true&user=bin", "keep=perhaps", "what=1"} {
			q, _ := url.ParseQuery(query)
			if _, resp, err := d.dialTerminal(t, q, "", withToken(terminalToken)...); err == nil || resp == nil || resp.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: %v, %v; want status 400", query, resp, err)
			}
		}
	})
}

func TestTerminalInputEnds(t *testing.T) {
	withTerminalServers(t, func(t *testing.T, d *terminalServer) {
		s := d.openTerminal(t, nil)
		last := "echo la''st\r"
		if st, err := d.sb.Status(t.Context()); err == nil && st.Provider == "local" { // its shell loses input that arrives while it starts a line
			s.typeText("exec sh -c 'echo rea''dy; exec cat'\r")
			s.awaitOutput("ready")
			last = "last\r"
		}
		s.typeText(last)
		s.sendText(map[string]any{"type": "close_stdin"})
		s.awaitOutput("last\r\n")
		if m := s.nextText(); m["type"] != "exit" || m["code"] != 0.0 {
			t.Errorf("the last message is %v", m)
		}
	})
}

func TestTerminalHangUp(t *testing.T) {
	withTerminalServers(t, func(t *testing.T, d *terminalServer) {
		for _, c := range []struct {
			query url.Values
			kept  bool
		}{
			{nil, false},
			{url.Values{"keep": {"true"}}, true},
			{url.Values{"keep": {"false"}}, false},
		} {
			s := d.openTerminal(t, c.query)
			s.typeText("echo be''gun\r")
			s.awaitOutput("begun")
			p := d.findProcess(t, s.process)
			s.ws.CloseNow()
			if !c.kept {
				wantHangUp(t, p)
				continue
			}
			if !staysAlive(t, p) {
				t.Fatalf("%v: the process has ended", c.query)
			}
			again := d.openTerminal(t, url.Values{"process": {s.process}})
			again.awaitOutput("begun") // all the output, from the first byte
			offset := s.output.Len()
			again.ws.CloseNow()
			if !staysAlive(t, p) {
				t.Error("a client that only attached has ended the process")
			}
			later := d.openTerminal(t, url.Values{"process": {s.process}, "from": {fmt.Sprint(offset)}, "keep": {"false"}})
			later.typeText("echo mo''re\r")
			later.awaitOutput("more")
			if strings.Contains(later.output.String(), "begun") {
				t.Errorf("from offset %d the output is %q", offset, later.output.String())
			}
			later.ws.CloseNow()
			wantHangUp(t, p)
		}
	})
}

// The server hangs up when it cannot send the output, before it learns from reading that the client
// has disconnected.
func TestTerminalHangUpOnWrite(t *testing.T) {
	withTerminalServers(t, func(t *testing.T, d *terminalServer) {
		s := d.openTerminal(t, nil)
		s.typeText("echo be''gun\r")
		s.awaitOutput("begun")
		p := d.findProcess(t, s.process)
		d.network.broken.Store(true)
		s.typeText("echo mo''re\r")
		wantHangUp(t, p)
	})
}

// wantHangUp waits for the end of the process.
func wantHangUp(t *testing.T, p atoll.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(15*time.Second)) // longer than a server hangs up
	defer cancel()
	if exit, err := p.Wait(ctx); err != nil || exit.Signal != atoll.SIGHUP {
		t.Errorf("the process ended with %v, %v; want SIGHUP", exit, err)
	}
}

func TestTerminalErrors(t *testing.T) {
	withTerminalServers(t, func(t *testing.T, d *terminalServer) {
		for query, kind := range map[string]atoll.Kind{"process=nope": atoll.ErrNotExist, "user=nobody-of-that-name": ""} {
			q, _ := url.ParseQuery(query)
			ws, _, err := d.dialTerminal(t, q, "", withToken(terminalToken)...)
			if err != nil {
				t.Fatal(err)
			}
			m := (&terminalClient{t: t, ws: ws}).nextText()
			if m["type"] != "error" || m["message"] == "" || kind != "" && m["kind"] != string(kind) {
				t.Errorf("%s: %v, want an error of kind %s", query, m, kind)
			}
		}
		for _, nonsense := range []string{"", "x", "{}", `{"type":"output"}`, `{"type":"resize"}`, `{"type":"resize","rows":0,"cols":1}`, `{"type":"input","what":1}`} {
			s := d.openTerminal(t, nil)
			if err := s.ws.Write(t.Context(), websocket.MessageText, []byte(nonsense)); err != nil {
				t.Fatal(err)
			}
			if m := s.nextText(); m["type"] != "error" || m["kind"] != "invalid" {
				t.Errorf("%q: %v, want an error", nonsense, m)
			}
			_, _, err := s.ws.Read(t.Context())
			if code := websocket.CloseStatus(err); code != websocket.StatusPolicyViolation {
				t.Errorf("%q: closed with %d, %v", nonsense, code, err)
			}
			if exit, err := d.findProcess(t, s.process).Wait(t.Context()); err != nil || exit.Signal == atoll.SIGKILL {
				t.Errorf("%q: ended with %v, %v; want SIGHUP", nonsense, exit, err)
			}
		}
	})
}

func TestTerminalClosingServer(t *testing.T) {
	withTerminalServers(t, func(t *testing.T, d *terminalServer) {
		s := d.openTerminal(t, nil)
		p := d.findProcess(t, s.process)
		closed := make(chan struct{})
		go func() { d.handler.Close(); close(closed) }()
		if m := s.nextText(); m["type"] != "error" || m["kind"] != "unavailable" {
			t.Errorf("%v, want an error", m)
		}
		if _, _, err := s.ws.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusGoingAway {
			t.Errorf("closed with %v", err)
		}
		<-closed
		if !staysAlive(t, p) {
			t.Error("the process has ended with the server")
		}
	})
}

// The handler checks the origin of a page and the token, which may be in the header or in a
// subprotocol.
func TestTerminalAuthentication(t *testing.T) {
	withTerminalServers(t, func(t *testing.T, d *terminalServer) {
		good := withToken(terminalToken)
		for _, c := range []struct {
			what, origin string
			protocols    []string
			status       int
		}{
			{"a page of the server's own", d.server.URL, good, 101},
			{"no page", "", good, 101},
			{"the token alone", "", good[1:], 101},
			{"the token first", "", []string{good[1], good[0]}, 101},
			{"a page of somebody else's", "https://evil.example", good, 403},
			{"a page from another port", "http://127.0.0.1:1", good, 403},
			{"a page of nowhere", "null", good, 403},
			{"no token", d.server.URL, []string{api.Subprotocol}, 401},
			{"nothing", d.server.URL, nil, 401},
			{"another token", d.server.URL, withToken("wrong"), 401},
			{"an empty token", d.server.URL, withToken(""), 401},
			{"no base64", d.server.URL, []string{api.Subprotocol, "atoll.token.***"}, 401},
		} {
			ws, resp, err := d.dialTerminal(t, nil, c.origin, c.protocols...)
			if resp == nil || resp.StatusCode != c.status {
				t.Errorf("%s: %v, %v; want status %d", c.what, resp, err, c.status)
				continue
			}
			if err == nil && c.protocols[0] == api.Subprotocol && ws.Subprotocol() != api.Subprotocol {
				t.Errorf("%s: the server speaks %q", c.what, ws.Subprotocol())
			}
			if strings.Contains(fmt.Sprint(resp.Header), "atoll.token") {
				t.Errorf("%s: the answer repeats the token", c.what)
			}
		}
		// Other WebSockets accept the token in the same way, and other requests do not.
		req, err := http.NewRequestWithContext(t.Context(), "GET", d.server.URL+"/v1/sandboxes", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Sec-WebSocket-Protocol", strings.Join(good, ", "))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("an ordinary request: status %d", resp.StatusCode)
		}
	})
}
