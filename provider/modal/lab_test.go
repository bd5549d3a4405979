//go:build linux

package modal_test

import (
	"bytes"
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/modal"
)

// provider returns a provider of open, closed at the end of the test, and then checks that
// nothing is left.
func provider(t *testing.T, change ...func(*modal.Options)) *modal.Provider {
	t.Helper()
	p := open(t, testimage.Serve(t).Push("busybox:1", testimage.Busybox(t)), change...)
	t.Cleanup(func() {
		removeAll(t, p)
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		nothingLives(t, p)
	})
	return p
}

// removeAll removes all sandboxes, with their volumes.
func removeAll(t *testing.T, p atoll.Provider) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	all, err := p.List(ctx, atoll.Filter{})
	if err != nil {
		t.Errorf("List: %v", err)
	}
	for _, st := range all {
		if sb, err := p.Get(ctx, st.ID); err == nil {
			if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		}
	}
}

// lives returns the names of the instances with a provider's prefix.
func lives(t *testing.T, p atoll.Provider) (names []string) {
	t.Helper()
	for name := range maps.Values(theLab.server.Sandboxes()) {
		if strings.HasPrefix(name, optionsOf(p).Prefix+"-") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// nothingLives waits until Modal has no instance of the provider.
func nothingLives(t *testing.T, p atoll.Provider) {
	t.Helper()
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		names := lives(t, p)
		if len(names) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("Modal still has %q", names)
			return
		}
	}
}

// instanceOf returns Modal's id of the instance of the sandbox with that id.
func instanceOf(t *testing.T, p atoll.Provider, id string) string {
	t.Helper()
	for life, name := range need(t).server.Sandboxes() {
		if name == optionsOf(p).Prefix+"-"+id {
			return life
		}
	}
	t.Fatalf("Modal has no sandbox %s: %q", id, lives(t, p))
	return ""
}

func created(t *testing.T, p atoll.Provider, spec atoll.Spec) atoll.Sandbox {
	t.Helper()
	sb, err := p.Create(t.Context(), &spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func shell(script string) *atoll.Command {
	return &atoll.Command{Args: []string{"/bin/busybox", "sh", "-c", script}}
}

// says runs a script, and returns its output.
func says(t *testing.T, sb atoll.Sandbox, script string) string {
	t.Helper()
	cmd := shell(script)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := atoll.Run(t.Context(), sb, cmd); err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return out.String()
}

// becomes waits until so returns true.
func becomes(t *testing.T, what string, within time.Duration, so func() bool) {
	t.Helper()
	within = testenv.Scale(within)
	for end := time.Now().Add(within); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// A network connects a provider to Modal.
type network struct {
	listener net.Listener
	to       string

	mu     sync.Mutex
	conns  []net.Conn
	frozen bool
}

// through makes a provider reach Modal through a network of its own.
func through(t *testing.T) (*network, func(*modal.Options)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{listener: l, to: strings.TrimPrefix(need(t).server.URL(), "http://")}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { n.carry(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		n.thaw()
		work.Wait()
	})
	return n, func(o *modal.Options) { o.ServerURL = "http://" + l.Addr().String() }
}

// carry copies data in both directions.
func (n *network) carry(near net.Conn) {
	far, err := net.Dial("tcp", n.to)
	if err != nil {
		near.Close()
		return
	}
	n.mu.Lock()
	n.conns = append(n.conns, near, far)
	n.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			buf := make([]byte, 32<<10)
			for {
				k, err := way[0].Read(buf)
				n.mu.Lock()
				frozen := n.frozen
				n.mu.Unlock()
				if frozen && err == nil { // neither side learns of it
					continue
				}
				if _, writeErr := way[1].Write(buf[:k]); err != nil || writeErr != nil {
					break
				}
			}
			near.Close()
			far.Close()
		})
	}
	both.Wait()
}

// freeze stops all data on the existing connections.
func (n *network) freeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen = true
}

// thaw breaks these connections; new ones work.
func (n *network) thaw() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen = false
	for _, c := range n.conns {
		c.Close()
	}
	n.conns = nil
}
