//go:build linux

package docker_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
	within "github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// hostile is the program with which the suite tries walls.
func hostile(t *testing.T) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hostile")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, "../../internal/testing/hostile")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	program, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// No program inside is taken for a host by the guest, whatever it does, nor gets what
// the guest has; and what it does to the guest keeps nobody else from it.
func TestGuestKeepsItsRights(t *testing.T) {
	p := open(t)
	defer p.Close()
	program := hostile(t)
	secretFile := filepath.Join(t.TempDir(), "marker")
	if err := os.WriteFile(secretFile, []byte("marked"), 0o600); err != nil {
		t.Fatal(err)
	}
	const ping = "000200010000000000000001" // of yamux, which answers with as much
	var direct [1]byte
	ours, theirs := net.Pipe()
	go func() { _ = within.Greet(theirs) }()
	if _, err := ours.Read(direct[:]); err != nil {
		t.Fatal(err)
	}
	ours.Close()
	for user, id := range map[string]string{"root": "0", "1234:2345": "1234"} {
		t.Run(user, func(t *testing.T) {
			sb, err := p.Create(t.Context(), &atoll.Spec{User: user})
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Remove(context.Background(), atoll.RemoveVolumes())
			if _, err := atoll.Files(sb).Write(t.Context(), "hostile", bytes.NewReader(program), atoll.WriteOptions{Mode: 0o755}); err != nil {
				t.Fatal(err)
			}
			for range 2 { // what the first has left does not help the second
				out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{
					"./hostile", secretFile, "marked", "guest", docker.GuestPath, within.Socket, hex.EncodeToString(direct[:]) + ping, "00",
				}})
				if err != nil || bytes.Contains(out, []byte("escaped")) || !bytes.HasSuffix(out, []byte("done\n")) {
					t.Errorf("the attack: %v\n%s", err, out)
				}
			}
			again := reopen(t, p) // another host, which connects anew
			defer again.Close()
			same, err := again.Get(t.Context(), sb.ID())
			if err != nil {
				t.Fatal(err)
			}
			if out, err := atoll.Output(t.Context(), same, &atoll.Command{Args: []string{"id", "-u"}}); err != nil || string(out) != id+"\n" {
				t.Errorf("id printed %q, %v", out, err)
			}
		})
	}
}

// A network reaches what it reaches, and never what belongs to the engine's machine
// alone: its loopback, and sockets that have a name but are no files.
func TestNetworksKeepOutOfTheMachine(t *testing.T) {
	p := open(t)
	defer p.Close()
	program := hostile(t)
	abstract := "@atoll-test-" + atoll.NewID()
	var loopback string
	err := inside(func() error {
		s, err := net.Listen("unix", abstract)
		if err != nil {
			return err
		}
		t.Cleanup(func() { s.Close() })
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		loopback = l.Addr().String()
		c, err := net.Dial("unix", abstract) // they are there
		if err != nil {
			return err
		}
		return c.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, network := range []atoll.Network{{Mode: atoll.NetworkNone}, {Mode: atoll.NetworkNamed, Name: openNetwork}, {Mode: atoll.NetworkNamed, Name: internalNetwork}} {
		t.Run(string(network.Mode)+" "+network.Name, func(t *testing.T) {
			sb, err := p.Create(t.Context(), &atoll.Spec{Network: network})
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Remove(context.Background(), atoll.RemoveVolumes())
			if _, err := atoll.Files(sb).Write(t.Context(), "hostile", bytes.NewReader(program), atoll.WriteOptions{Mode: 0o755}); err != nil {
				t.Fatal(err)
			}
			out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"./hostile", "/none", "", "sockets",
				"unix", abstract, "tcp", loopback, "unix", "/var/run/docker.sock", "unix", "/run/docker.sock", "unix", engine.Dir + "/docker.sock", "unix", engine.Dir + "/exec/containerd/containerd.sock",
			}})
			if err != nil || string(out) != "done\n" {
				t.Errorf("the attack: %v\n%s", err, out)
			}
		})
	}
}
