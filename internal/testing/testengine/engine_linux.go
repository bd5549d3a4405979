// Package testengine runs container engines for tests, in their own namespaces, which end with them.
package testengine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// An Engine runs in its own namespaces. All its files are in Dir.
type Engine struct {
	Dir  string
	Host string // URL of its socket
	Pid  int    // of the shell that starts it, in the same namespaces

	cmd    *exec.Cmd
	tether *os.File // the engine ends when this is closed

	tcp  net.Listener
	work sync.WaitGroup // connections of tcp
}

// New creates the directory of an engine. The caller must call End.
func New() (*Engine, error) {
	dir, err := os.MkdirTemp("", "atoll-engine-")
	if err != nil {
		return nil, err
	}
	return &Engine{Dir: dir, Host: "unix://" + filepath.Join(dir, "docker.sock")}, nil
}

// Docker needs a Docker Engine and returns one that ends with the test. It has no network.
func Docker(t testing.TB) *Engine {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.Program("dockerd", "docker.io"), testenv.StaticBusybox)
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.End(); err != nil {
			t.Errorf("dockerd: %v", err)
		}
	})
	if err := e.Dockerd(); err != nil {
		t.Fatal(err)
	}
	return e
}

// At returns the path of one of the engine's files.
func (e *Engine) At(name string) string { return filepath.Join(e.Dir, name) }

// Dockerd starts a Docker Engine and waits until it answers.
func (e *Engine) Dockerd(args ...string) error {
	if err := os.WriteFile(e.At("none.json"), []byte("{}"), 0o600); err != nil {
		return err
	}
	// In memory: a hundred concurrent containers sync thousands of files, which is slow on a
	// busy disk.
	return e.Start(`mkdir -p "$0/data" && mount -t tmpfs -o mode=711 engine "$0/data" || exit`, append([]string{
		"dockerd", "--host", e.Host, "--data-root", e.At("data"), "--exec-root", e.At("exec"), "--pidfile", e.At("pid"),
		"--config-file", e.At("none.json"), "--cgroup-parent", "/" + filepath.Base(e.Dir),
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
	}, args...)...)
}

// Start starts an engine in its own namespaces and waits until it answers. First it runs prepare, a
// line of shell, in the namespaces. The program must write its PID to the file pid. If it ends before
// End, Start runs it again.
func (e *Engine) Start(prepare string, program ...string) error {
	return e.startEngine(e.Await, prepare, program...)
}

// startEngine is Start for any engine; await waits for its first answer.
func (e *Engine) startEngine(await func() error, prepare string, program ...string) error {
	e.cmd = exec.Command("sh", append([]string{
		"-c", `mount --make-rprivate / && mount -t proc proc /proc && busybox ip link set lo up || exit
		` + prepare + `
		{ cat <&3; echo >"$0/end"; kill $(cat "$0/pid"); } & # cat until the tests have ended
		until [ -e "$0/end" ] || [ ! -d "$0" ]; do "$@" & wait $!; rm -f "$0/pid"; sleep 0.1; done; wait`, e.Dir,
	}, program...)...)
	log, err := os.Create(e.At("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.Dir = e.Dir
	tether, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	defer tether.Close()
	e.tether = ours
	e.cmd.Env = append(os.Environ(), "TMPDIR="+e.Dir, "GOGC=400") // for files that it leaves if it is killed; memory in place of CPU time
	e.cmd.ExtraFiles = []*os.File{tether}
	e.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Setpgid: true,
	}
	if err := e.cmd.Start(); err != nil {
		return err
	}
	e.Pid = e.cmd.Process.Pid
	if err := await(); err != nil {
		text, _ := os.ReadFile(e.At("log"))
		return fmt.Errorf("%s does not answer: %w\n%s", program[0], err, text)
	}
	return nil
}

// startTime limits the start of an engine.
var startTime = testenv.Scale(4 * time.Minute)

// Await waits until the Docker Engine answers.
func (e *Engine) Await() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	return e.withClient(func(c *client.Client) error {
		for {
			_, err := c.Ping(ctx, client.PingOptions{})
			if err == nil {
				return nil
			}
			select {
			case <-ctx.Done():
				return err
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}

// withClient calls fn with a Docker client.
func (e *Engine) withClient(fn func(*client.Client) error) error {
	c, err := client.New(client.WithHost(e.Host))
	if err != nil {
		return err
	}
	defer c.Close()
	return fn(c)
}

// Load loads an image into the engine under a name.
func (e *Engine) Load(ref string, img v1.Image) error {
	packed, err := testimage.Archive(ref, img)
	if err != nil {
		return err
	}
	return e.withClient(func(c *client.Client) error {
		loaded, err := c.ImageLoad(context.Background(), bytes.NewReader(packed))
		if err != nil {
			return err
		}
		defer loaded.Close()
		_, err = io.Copy(io.Discard, loaded)
		return err
	})
}

// Held returns the containers and volumes of sandboxes in the engine, without those that all sandboxes
// share.
func (e *Engine) Held(t *testing.T) (all []string) {
	t.Helper()
	err := e.withClient(func(c *client.Client) error {
		containers, err := c.ContainerList(context.Background(), client.ContainerListOptions{All: true})
		if err != nil {
			return err
		}
		for _, x := range containers.Items {
			if x.Labels["atoll.installs"] != "" {
				continue // left by a program that was killed while it installed the guest; others remove it later
			}
			all = append(all, "container "+strings.Join(x.Names, ","))
		}
		volumes, err := c.VolumeList(context.Background(), client.VolumeListOptions{})
		if err != nil {
			return err
		}
		for _, x := range volumes.Items {
			if !strings.Contains(x.Name, "-guest-") {
				all = append(all, "volume "+x.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Inside calls fn in the engine's network namespace.
func (e *Engine) Inside(fn func() error) error { return testenv.InNetwork(e.Pid, fn) }

// Dial connects to an address of the engine's machine.
func (e *Engine) Dial(ctx context.Context, address string) (conn net.Conn, err error) {
	err = e.Inside(func() (err error) {
		var to net.Dialer
		conn, err = to.DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// Registry starts a registry, until the end of the test, at an address of the engine's machine.
func (e *Engine) Registry(t testing.TB, address string) *testimage.Registry {
	t.Helper()
	var l net.Listener
	err := e.Inside(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return testimage.ServeOn(t, l, func(ctx context.Context, _, addr string) (net.Conn, error) { return e.Dial(ctx, addr) })
}

// TCP makes the engine listen on TCP in the network of the tests, and returns its URL.
func (e *Engine) TCP(t testing.TB) string {
	t.Helper()
	var err error
	if e.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	e.work.Go(e.forwardSocket)
	return "tcp://" + e.tcp.Addr().String()
}

// forwardSocket forwards connections from TCP to the engine's socket.
func (e *Engine) forwardSocket() {
	for {
		conn, err := e.tcp.Accept()
		if err != nil {
			return
		}
		e.work.Go(func() {
			defer conn.Close()
			far, err := net.Dial("unix", e.At("docker.sock"))
			if err != nil {
				return
			}
			defer far.Close()
			var back sync.WaitGroup
			back.Go(func() {
				_, _ = io.Copy(conn, far)
				_ = conn.(*net.TCPConn).CloseWrite()
			})
			_, _ = io.Copy(far, conn)
			_ = far.(*net.UnixConn).CloseWrite()
			back.Wait()
		})
	}
}

// endTime limits the end of an engine.
var endTime = testenv.Scale(2 * time.Minute)

// End ends the engine, if it was started, and removes its files. If the engine does not end in time,
// End kills all processes in its namespaces and returns an error.
func (e *Engine) End() error {
	if e.tether != nil {
		e.tether.Close()
	}
	var late error
	if e.cmd != nil && e.cmd.Process != nil {
		kill := time.AfterFunc(endTime, func() { _ = e.cmd.Process.Kill() })
		_ = e.cmd.Wait() // the shell ends by a signal
		if !kill.Stop() {
			text, _ := os.ReadFile(e.At("log"))
			late = fmt.Errorf("engine did not end within %s and was killed\n%s", endTime, text)
		}
	}
	if e.tcp != nil {
		e.tcp.Close()
		e.work.Wait()
	}
	return errors.Join(late, testenv.DropCgroups(filepath.Base(e.Dir), 0), os.RemoveAll(e.Dir))
}
