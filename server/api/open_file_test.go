package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/server/api/client"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// An editableFS can open files with atoll.OpenFile.
type editableFS interface {
	atoll.FS
	atoll.Editor
}

// A slowFS opens files, and writes to them, when gate is closed, as those of a service far away.
type slowFS struct {
	editableFS
	gate  chan struct{}
	begun chan string // "open" and "write"
	opens bool        // opening is slow, too
}

func (f *slowFS) Open(ctx context.Context, name string, opts atoll.OpenOptions) (atoll.File, error) {
	f.begun <- "open"
	if f.opens {
		<-f.gate
	}
	file, err := f.editableFS.Open(ctx, name, opts)
	return slowFile{file, f}, err
}

type slowFile struct {
	atoll.File
	fs *slowFS
}

func (f slowFile) WriteAt(ctx context.Context, p []byte, offset int64) (int, error) {
	f.fs.begun <- "write"
	<-f.fs.gate
	return f.File.WriteAt(ctx, p, offset)
}

// withSlowFiles is withFiles with a slowFS.
func withSlowFiles(t *testing.T, opens bool) (*rig, *slowFS, string) {
	t.Helper()
	r, _, dir := withFiles(t, Options{})
	slow := &slowFS{editableFS: r.box.fs.(editableFS), gate: make(chan struct{}), begun: make(chan string, 16), opens: opens}
	r.box.fs = slow
	return r, slow, dir
}

// A server answers pings while it waits for a file: the client would give it up otherwise, and a proxy, too.
func TestOpenFileAnswersPings(t *testing.T) {
	for _, opens := range []bool{false, true} {
		r, slow, dir := withSlowFiles(t, opens)
		ws, _, err := websocket.Dial(t.Context(), r.server.URL+"/v1/sandboxes/"+r.sb.ID()+"/files/open?path=/work/f&write=true&create=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow()
		replies := make(chan error, 8)
		go func() { // reads the answers to pings
			defer close(replies)
			for {
				_, b, err := ws.Read(t.Context())
				var reply wire.FileReply
				if err == nil {
					_, err = wire.DecodeFileMessage(b, &reply)
				}
				if err == nil && reply.Error != nil {
					err = reply.Error.ToError("", "")
				}
				replies <- err
				if err != nil {
					return
				}
			}
		}()
		<-slow.begun
		if !opens {
			if err := <-replies; err != nil {
				t.Fatal(err)
			}
			for range wire.MaxFileRequests {
				if err := ws.Write(t.Context(), websocket.MessageBinary, []byte(`{"op":"write"}`+"\nab")); err != nil {
					t.Fatal(err)
				}
			}
			<-slow.begun
		}
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(5*time.Second))
		err = ws.Ping(ctx)
		cancel()
		if err != nil {
			t.Errorf("opening is slow %v: no answer to a ping: %v", opens, err)
		}
		close(slow.gate)
		want := wire.MaxFileRequests
		if opens {
			want = 1
		}
		for range want {
			if err := <-replies; err != nil {
				t.Errorf("opening is slow %v: %v", opens, err)
			}
		}
		if b, err := os.ReadFile(filepath.Join(dir, "f")); !opens && string(b) != "ab" || err != nil {
			t.Errorf("the file holds %q, %v", b, err)
		}
	}
}

// The context of a call bounds it, also while calls before it are not finished. The server still performs requests that it has got.
func TestOpenFileContexts(t *testing.T) {
	r, slow, dir := withSlowFiles(t, false)
	f, err := atoll.OpenFile(t.Context(), atoll.Files(r.sb), "/work/f", atoll.OpenOptions{Write: true, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 * wire.MaxFileRequests {
		calls.Go(func() {
			if n, err := f.WriteAt(ctx, []byte("ab"), 0); n != 0 || !errors.Is(err, context.Canceled) {
				t.Errorf("WriteAt = %d, %v", n, err)
			}
		})
	}
	for what := range slow.begun {
		if what == "write" {
			break
		}
	}
	cancel()
	calls.Wait()
	close(slow.gate)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "f")); string(b) != "ab" || err != nil {
		t.Errorf("the file holds %q, %v", b, err)
	}
}

// A server that reads nothing does not hold a call beyond its context.
func TestOpenFileServerStalls(t *testing.T) {
	r, _, _ := withFiles(t, Options{})
	stop := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.HasSuffix(req.URL.Path, "/files/open") {
			r.handler.ServeHTTP(w, req)
			return
		}
		ws, err := websocket.Accept(w, req, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		message, _ := wire.EncodeFileMessage(wire.FileReply{}, nil)
		_ = ws.Write(req.Context(), websocket.MessageBinary, message)
		<-stop
	}))
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateNew {
			_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10) // so that the connection takes up less than a message
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	defer close(stop)
	c, err := client.New(t.Context(), client.Options{Dial: func(ctx context.Context) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
		if err == nil {
			err = conn.(*net.TCPConn).SetWriteBuffer(4 << 10)
		}
		return conn, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sb, err := c.Get(t.Context(), fakeID)
	if err != nil {
		t.Fatal(err)
	}
	f, err := atoll.OpenFile(t.Context(), atoll.Files(sb), "/work/f", atoll.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(time.Second))
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(ctx, make([]byte, wire.MaxFileData), 0)
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WriteAt: %v, want %v", err, context.DeadlineExceeded)
		}
	case <-time.After(testenv.Scale(5 * time.Second)):
		t.Error("WriteAt outlives its context")
	}
}
