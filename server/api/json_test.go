package api

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/client"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func TestRequestsAreStrict(t *testing.T) {
	h, err := NewHandler(newFake(), Options{MaxBody: 300})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	const sandboxes, box = "/v1/sandboxes", "/v1/sandboxes/" + fakeID
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string // part of the message
	}{
		{"POST", sandboxes, `{"nmae":"x"}`, 400, `unknown field "nmae"`},
		{"POST", sandboxes, `{"resources":{"memroy":1}}`, 400, `unknown field "memroy"`},
		{"POST", sandboxes, `{"resources":{"memory":"1g"}}`, 400, "resources.memory: must be a whole number (int64), got string"},
		{"POST", sandboxes, `{"cmd":"ls"}`, 400, "cmd: must be a list, got string"},
		{"POST", sandboxes, `{"resources":{"cpus":"two"}}`, 400, "resources.cpus: must be a number, got string"},
		{"POST", sandboxes, `{"read_only_root":1}`, 400, "read_only_root: must be true or false, got number"},
		{"POST", sandboxes, `{"name":["x"]}`, 400, "name: must be a string, got array"},
		{"POST", sandboxes, `{"ttl":"soon"}`, 400, "soon"},
		{"POST", sandboxes, `{"ttl":true}`, 400, `ttl: must be text like "90s", or a number of seconds, got bool`},
		{"POST", sandboxes, "{\"cmd\":[\"cat\",\"\xff\"]}", 400, "must be UTF-8"},
		{"POST", sandboxes, `{} {}`, 400, "after the JSON value"},
		{"POST", sandboxes, `{}x`, 400, "after the JSON value"},
		{"POST", sandboxes, `[]`, 400, "must be an object, got array"},
		{"POST", sandboxes, ``, 400, "empty"},
		{"POST", sandboxes, `{`, 400, "the JSON ends too early: a bracket or a quote is missing"},
		{"POST", sandboxes, `{"name":`, 400, "ends too early"},
		{"POST", sandboxes, `{"name":"we`, 400, "ends too early"},
		{"POST", sandboxes, `{"name":"` + strings.Repeat("x", 400) + `"}`, 413, "larger than 300 bytes"},
		{"POST", sandboxes, `{}` + strings.Repeat(" ", 400), 413, "larger than 300 bytes"},
		{"GET", sandboxes + "?naem=x", "", 400, `unknown parameter "naem"`},
		{"GET", sandboxes + "?label=x", "", 400, "key=value"},
		{"GET", sandboxes + "?state=nonsense", "", 400, "none of creating, created, running, paused, stopped, failed"},
		{"GET", sandboxes + "?state=running&state=", "", 400, `parameter state: ""`},
		{"GET", sandboxes + "?name=%zz", "", 400, "%zz"},
		{"GET", sandboxes + "?name=a;b", "", 400, "semicolon"},
		{"GET", sandboxes + "?name=a&name=b", "", 400, "name: given 2 times"},
		{"DELETE", box + "/files?path=d&recursive=%zz", "", 400, "%zz"},
		{"DELETE", box + "/files?path=d&recursive", "", 400, "recursive"},
		{"DELETE", box + "?volumes=maybe", "", 400, "maybe"},
		{"DELETE", "/v1/images?ref=x&force=maybe", "", 400, "maybe"},
		{"DELETE", "/v1/images?name=x", "", 400, "name"},
		{"POST", "/v1/images/prune", `{"everything":true}`, 400, "everything"},
		{"GET", box + "/files?path=/x&offset=z", "", 400, "offset"},
		{"GET", box + "/files", "", 400, "path: missing"},
		{"PUT", box + "/files?path=/x&mode=9", "", 400, "mode"},
		{"POST", box + "/stop", `{"grace":true}`, 400, "grace"},
		{"POST", box + "/exec", `{"args":["true"],"limit":-1}`, 400, "limit"},
		{"POST", box + "/exec", `{"args":["true"],"timeout":{}}`, 400, "timeout: must be text"},
		{"POST", box + "/exec", `{"args":"true"}`, 400, `args: must be a list, got string`},
		{"POST", box + "/exec", `{"args":["cat"],"stdin_encoding":"base64","stdin":"aGVsbG8gd29ybGQ!!!!"}`, 400, "stdin: not base64"},
		{"POST", box + "/exec", `{"args":["cat"],"stdin_encoding":"base64","stdin":"!!!!"}`, 400, "stdin: not base64"},
		{"POST", box + "/processes/p1/signal", `{"signal":false}`, 400, `signal: must be text like "SIGTERM"`},
		{"POST", box + "/exec", `{"args":["true"],"stdin_encoding":"hex"}`, 400, "stdin_encoding"},
		{"GET", "/v1/resolve", "", 400, "either"},
		{"GET", box + "/exec", "", 400, "WebSocket"},
		{"GET", box + "/dial?port=80", "", 400, "upgrade"},
		{"GET", box + "/dial?port=0", "", 400, "1..65535"},
		{"GET", box + "/ports/x/", "", 400, "1..65535"},
		{"GET", "/v2/sandboxes", "", 404, "not part of this server's API"},
		{"PATCH", sandboxes, "", 404, "PATCH /v1/sandboxes"},
		{"GET", "/v1/sandboxes/nope", "", 404, ""},
	} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		err := wire.DecodeError(rec.Code, rec.Body.Bytes(), "", "")
		if rec.Code != c.status || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "Command") {
			t.Errorf("%s %s %.40s: %d %v, want %d and %q", c.method, c.path, c.body, rec.Code, err, c.status, c.want)
		}
		if c.status == 400 && atoll.KindOf(err) != atoll.ErrInvalid {
			t.Errorf("%s %s: kind %q, want invalid", c.method, c.path, atoll.KindOf(err))
		}
	}
}

// TestRoutesTakeWhatTheyDeclare checks that each route refuses unknown parameters and bodies before
// it calls the provider.
func TestRoutesTakeWhatTheyDeclare(t *testing.T) {
	h, err := NewHandler(struct{ atoll.Provider }{}, Options{}) // panics if a route calls it
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ask := func(method, target string, body io.Reader) error {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(method, target, body))
		return wire.DecodeError(rec.Code, rec.Body.Bytes(), "", "")
	}
	for _, r := range Routes() {
		if r.passThrough {
			continue
		}
		path := strings.NewReplacer("{id}", fakeID, "{pid}", "p1", "{name}", "n", "{project}", "p").Replace(r.Path)
		q := url.Values{}
		for _, p := range r.Params {
			if p.Required {
				q.Set(p.Name, "1")
			}
		}
		if r.Body.Media == "" {
			for _, body := range []io.Reader{strings.NewReader("{}"), io.MultiReader()} { // without a length
				if err := ask(r.Method, path+"?"+q.Encode(), body); !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), "body") {
					t.Errorf("%s with a body: %v", r.Name, err)
				}
			}
		}
		for name := range q {
			without := maps.Clone(q)
			without.Del(name)
			if err := ask(r.Method, path+"?"+without.Encode(), nil); !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), name+": missing") {
				t.Errorf("%s without %s: %v", r.Name, name, err)
			}
		}
		q.Set("zz", "1")
		if err := ask(r.Method, path+"?"+q.Encode(), nil); !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), `unknown parameter "zz"`) {
			t.Errorf("%s with a parameter zz: %v", r.Name, err)
		}
	}
}

func TestClientIgnoresUnknownFields(t *testing.T) {
	newer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/info":
			w.Write([]byte(`{"name":"future","colour":"red","caps":{"files":true,"teleport":true}}`))
		default:
			w.Write([]byte(`{"sandboxes":[{"id":"` + fakeID + `","state":"dreaming","mood":{}}],"next":"x"}`))
		}
	})
	server := httptest.NewServer(newer)
	defer server.Close()
	c, err := client.New(t.Context(), client.Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if info := c.Info(); info.Name != "future" || !info.Caps.Files {
		t.Errorf("Info() = %+v", info)
	}
	all, err := c.List(t.Context(), atoll.Filter{})
	if err != nil || len(all) != 1 || all[0].State != "dreaming" {
		t.Errorf("List() = %+v, %v", all, err)
	}
}

// TestWireNames asserts the frozen names, by which clients and servers of different versions work
// together.
func TestWireNames(t *testing.T) {
	size, sig := atoll.Size{Rows: 24, Cols: 80}, atoll.SIGINT
	for _, c := range []struct {
		v    any
		want string
	}{
		{wire.Message{Type: wire.MsgExec, Command: &atoll.Command{Args: []string{"cat"}}, Stdin: true, Stdout: true, Stderr: true},
			`{"type":"exec","command":{"args":["cat"]},"stdin":true,"stdout":true,"stderr":true}`},
		{wire.Message{Type: wire.MsgAttach, Stdout: true, Joint: true, From: &wire.Offsets{Stdout: 5, Stderr: -1}, NoFollow: true},
			`{"type":"attach","stdout":true,"joint":true,"from":{"stdout":5,"stderr":-1},"no_follow":true}`},
		{wire.Message{Type: wire.MsgStarted, ID: "ab"}, `{"type":"started","id":"ab"}`},
		{wire.Message{Type: wire.MsgAttached, ID: "ab"}, `{"type":"attached","id":"ab"}`},
		{wire.Message{Type: wire.MsgWindow, Stream: atoll.Stdout, Bytes: 9}, `{"type":"window","stream":"stdout","bytes":9}`},
		{wire.Message{Type: wire.MsgClose, Stream: "stdin", Abort: true}, `{"type":"close","stream":"stdin","abort":true}`},
		{wire.Message{Type: wire.MsgSignal, Signal: &sig}, `{"type":"signal","signal":"SIGINT"}`},
		{wire.Message{Type: wire.MsgResize, Size: &size}, `{"type":"resize","size":{"rows":24,"cols":80}}`},
		{wire.Message{Type: wire.MsgGap, Stream: atoll.Stderr, Gap: &wire.Gap{From: 1, To: 2}}, `{"type":"gap","stream":"stderr","gap":{"from":1,"to":2}}`},
		{wire.Message{Type: wire.MsgExit, Exit: &atoll.Exit{Code: 124, TimedOut: true}}, `{"type":"exit","exit":{"code":124,"timed_out":true}}`},
		{wire.Message{Type: wire.MsgEnd}, `{"type":"end"}`},
		{wire.Message{Type: wire.MsgError, Error: &wire.Error{Op: "exec", ID: "web", Kind: atoll.ErrStopped, Message: "m", RequestID: "r"}},
			`{"type":"error","error":{"op":"exec","id":"web","kind":"stopped","message":"m","request_id":"r"}}`},
		{execReply{Exit: atoll.Exit{Code: 1}, Stdout: "o", StdoutEncoding: "utf-8", StderrEncoding: "utf-8"},
			`{"code":1,"stdout":"o","stdout_encoding":"utf-8","stdout_truncated":false,"stderr":"","stderr_encoding":"utf-8","stderr_truncated":false}`},
		{wire.ProvidersReply{Providers: []atoll.Member{{Info: atoll.Info{Name: "n"}, InUse: true, Problem: "p"}}}, `"in_use":true,"problem":"p"}]}`},
		{wire.ServerInfo{Info: atoll.Info{Name: "n"}, Server: "1"}, `"server_version":"1"`},
		{wire.NewFileInfo(atoll.FileInfo{Name: "\xff", Path: "/\xff"}), `"name_b64":"/w==","path_b64":"L/8="`},
		{wire.IDReply{ID: "x"}, `{"id":"x"}`},
		{wire.StopRequest{}, `{}`},
		{wire.ImagesReply{Images: []atoll.Image{}}, `{"images":[]}`},
		{atoll.Image{Ref: "r", Provider: "q", Digest: "d", Platform: "p", Size: 1, InUse: true},
			`{"ref":"r","provider":"q","digest":"d","platform":"p","size":1,"in_use":true,"fetched":"0001-01-01T00:00:00Z","used":"0001-01-01T00:00:00Z"}`},
		{atoll.PruneOptions{}, `{}`},
		{atoll.PruneOptions{All: true, UnusedFor: atoll.Duration(time.Hour)}, `{"all":true,"unused_for":"1h0m0s"}`},
		{atoll.Pruned{Images: []string{"d"}, Size: 1}, `{"images":["d"],"size":1}`},
	} {
		rec := httptest.NewRecorder()
		writeJSON(rec, 200, c.v)
		if got := rec.Body.String(); !strings.Contains(got, c.want) {
			t.Errorf("%T is %s, want %s", c.v, got, c.want)
		}
	}
}

func TestASCIIJSON(t *testing.T) {
	for in, want := range map[string]string{
		"a b\n": `"a b\n"`, "é": `"\u00e9"`, "😀": `"\ud83d\ude00"`, "\x00\x1b\x7f": `"\u0000\u001b\u007f"`,
	} {
		if got := wire.ASCIIJSON(in); got != want {
			t.Errorf("wire.ASCIIJSON(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestEncodeText(t *testing.T) {
	for _, tt := range []struct {
		in        string
		truncated bool
		want      string
		encoding  string
	}{
		{"", true, "", encodingText},
		{"abc", false, "abc", encodingText},
		{"éabc", true, "éabc", encodingText},
		{"ab€", true, "ab€", encodingText},
		{"ab€"[:4], true, "ab", encodingText},
		{"ab😀"[:5], true, "ab", encodingText},
		{"ab😀"[:3], true, "ab", encodingText},
		{"ab€"[:4], false, "YWLigg==", encodingBase64},
		{"a\xffb", true, "Yf9i", encodingBase64},
		{"\x80\x80\x80\x80\x80", true, "gICAgIA=", encodingBase64},
	} {
		if got, encoding := encodeText([]byte(tt.in), tt.truncated); got != tt.want || encoding != tt.encoding {
			t.Errorf("encodeText(%q, %v) = %q, %s; want %q, %s", tt.in, tt.truncated, got, encoding, tt.want, tt.encoding)
		}
	}
}
