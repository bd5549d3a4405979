//go:build linux

package fakevmm

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// Ports of a guest without a machine, besides GuestPort.
const (
	offPort    = 50 // powers the guest off
	MemoryPort = 60 // serves a Memory
)

// An inProcessGuest is a guest without a machine, in the hypervisor's process.
type inProcessGuest struct {
	script *Script
	Memory

	booted time.Time
}

func (g *inProcessGuest) powerOn(f *fakeFirecracker) error {
	g.booted = time.Now()
	if f.boot != nil {
		fmt.Printf("[    0.000000] Command line: %s\n", f.boot.Args)
	}
	if g.script.Crash > 0 {
		time.AfterFunc(time.Duration(g.script.Crash)*time.Millisecond, func() {
			fmt.Println("[    2.000000] Kernel panic - not syncing: VFS: Unable to mount root fs\n[    2.1] Rebooting in 1 seconds..")
			os.Exit(0)
		})
	}
	return nil
}

func (g *inProcessGuest) portServer(port uint32) func(net.Conn, *bufio.Reader) {
	switch {
	case time.Since(g.booted) < time.Duration(g.script.Boot)*time.Millisecond:
		return nil
	case port == GuestPort:
		return serveFiles
	case port == MemoryPort:
		return func(conn net.Conn, in *bufio.Reader) { g.Serve(conn, in) }
	case port == offPort && !g.script.Deaf:
		return func(conn net.Conn, _ *bufio.Reader) {
			conn.Close()
			restartMachine()
		}
	}
	return nil
}

func serveFiles(conn net.Conn, _ *bufio.Reader) {
	dir, err := filepath.Abs("inside")
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = guest.Serve(conn, dirfs.Options{Workdir: dir, UID: -1, GID: -1})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
}

func (g *inProcessGuest) setPaused(paused bool) error {
	if paused {
		g.mu.Lock()
	} else {
		g.mu.Unlock()
	}
	return nil
}

func (g *inProcessGuest) pressCtrlAltDel() {
	if !g.script.Deaf && !g.script.Mute {
		time.AfterFunc(30*time.Millisecond, restartMachine)
	}
}

func restartMachine() {
	fmt.Println("[    1.000000] reboot: Restarting system")
	os.Exit(0)
}

func (g *inProcessGuest) readMemory() (string, error) { return g.text, nil }
func (g *inProcessGuest) setMemory(text string)       { g.text = text }

// A Memory is the memory of a guest: one line of text.
type Memory struct {
	mu   sync.Mutex // held while the machine is paused
	text string
}

// Serve stores each line that it reads and answers with the previous one. It answers "bye" at the end
// of in.
func (m *Memory) Serve(conn io.Writer, in *bufio.Reader) {
	for {
		text, err := in.ReadString('\n')
		m.mu.Lock()
		if err != nil {
			m.mu.Unlock()
			fmt.Fprint(conn, "bye\n") // the client still reads
			return
		}
		was := m.text
		m.text = strings.TrimSuffix(text, "\n")
		fmt.Fprintf(conn, "%s\n", was)
		m.mu.Unlock()
	}
}
