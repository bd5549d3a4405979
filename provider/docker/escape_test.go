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

// buildHostile returns the program that tries to escape from sandboxes.
func buildHostile(t *testing.T) []byte {
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

// The guest does not accept any program inside as its host, and no program gets its
// capabilities. An attack on the guest does not lock out the real host.
func TestGuestRejectsPrograms(t *testing.T) {
	p := open(t)
	defer p.Close()
	program := buildHostile(t)
	secretFile := filepath.Join(t.TempDir(), "marker")
	if err := os.WriteFile(secretFile, []byte("marked"), 0o600); err != nil {
		t.Fatal(err)
	}
	const ping = "000200010000000000000001" // a ping of yamux, which replies with as many bytes
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
			for range 2 { // the second run may use what the first has left
				out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{
					"./hostile", secretFile, "marked", "guest", docker.GuestPath, within.Socket, hex.EncodeToString(direct[:]) + ping, "00",
				}})
				if err != nil || bytes.Contains(out, []byte("escaped")) || !bytes.HasSuffix(out, []byte("done\n")) {
					t.Errorf("the attack: %v\n%s", err, out)
				}
			}
			again := reopen(t, p) // a new connection to the guest
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

// Sandboxes on a network cannot reach the loopback addresses and the abstract sockets of the
// engine's machine.
func TestNetworksIsolateHost(t *testing.T) {
	p := open(t)
	defer p.Close()
	program := buildHostile(t)
	abstract := "@atoll-test-" + atoll.NewID()
	var loopback string
	err := runInEngine(func() error {
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
		c, err := net.Dial("unix", abstract) // the host can reach it
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
