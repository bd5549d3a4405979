//go:build linux

package docker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testimage"
)

// A daemon is an engine of the tests' own, in namespaces that end with it. It keeps
// all that it has in dir.
type daemon struct {
	dir, host string
	cmd       *exec.Cmd // the shell that starts it
	tether    *os.File  // it ends when this is closed
}

func newDaemon() (*daemon, error) {
	dir, err := os.MkdirTemp("", "atoll-docker-")
	if err != nil {
		return nil, err
	}
	return &daemon{dir: dir, host: "unix://" + filepath.Join(dir, "docker.sock")}, nil
}

func (d *daemon) at(name string) string { return filepath.Join(d.dir, name) }

// dockerd starts it as a Docker Engine.
func (d *daemon) dockerd(args ...string) error {
	if err := os.WriteFile(d.at("none.json"), []byte("{}"), 0o600); err != nil {
		return err
	}
	// In memory: a hundred containers at once make thousands of files durable, which a
	// busy disk would hold up.
	return d.start(`mkdir -p "$0/data" && mount -t tmpfs -o mode=711 engine "$0/data" || exit`, append([]string{
		"dockerd", "--host", d.host, "--data-root", d.at("data"), "--exec-root", d.at("exec"), "--pidfile", d.at("pid"),
		"--config-file", d.at("none.json"), "--cgroup-parent", "/" + filepath.Base(d.dir),
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
	}, args...)...)
}

// start starts a program that writes its number to the file pid, in namespaces of its
// own that prepare, a shell's line, changes first. It waits until an engine answers. The
// program is started again when it ends before it is meant to.
func (d *daemon) start(prepare string, program ...string) error {
	d.cmd = exec.Command("sh", append([]string{
		"-c", `mount --make-rprivate / && mount -t proc proc /proc && busybox ip link set lo up || exit
		` + prepare + `
		{ cat <&3; echo >"$0/end"; kill $(cat "$0/pid"); } & # cat until the tests have ended
		until [ -e "$0/end" ]; do "$@" & wait $!; rm -f "$0/pid"; done; wait`, d.dir,
	}, program...)...)
	log, err := os.Create(d.at("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Dir = d.dir
	tether, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	defer tether.Close()
	d.tether = ours
	d.cmd.Env = append(os.Environ(), "TMPDIR="+d.dir) // for what it leaves when it is killed
	d.cmd.ExtraFiles = []*os.File{tether}
	d.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Setpgid: true,
	}
	if err := d.cmd.Start(); err != nil {
		return err
	}
	if err := answers(d.host); err != nil {
		text, _ := os.ReadFile(d.at("log"))
		return fmt.Errorf("%s does not answer: %w\n%s", program[0], err, text)
	}
	return nil
}

// answers waits until an engine does.
func answers(host string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.New(client.WithHost(host))
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		if _, err = c.Ping(ctx, client.PingOptions{}); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// loadBusybox gives it the image busybox.
func (d *daemon) loadBusybox(t testing.TB) error {
	tag, err := name.NewTag(busybox)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := tarball.Write(tag, testimage.WithSockets(t), &packed); err != nil {
		return err
	}
	c, err := client.New(client.WithHost(d.host))
	if err != nil {
		return err
	}
	defer c.Close()
	loaded, err := c.ImageLoad(context.Background(), &packed)
	if err != nil {
		return err
	}
	defer loaded.Close()
	_, err = bytes.NewBuffer(nil).ReadFrom(loaded)
	return err
}

// makeNetworks gives it the networks that the tests use.
func (d *daemon) makeNetworks() error {
	c, err := client.New(client.WithHost(d.host))
	if err != nil {
		return err
	}
	defer c.Close()
	for name, internal := range map[string]bool{openNetwork: false, internalNetwork: true} {
		if _, err := c.NetworkCreate(context.Background(), name, client.NetworkCreateOptions{Driver: "bridge", Internal: internal}); err != nil {
			return err
		}
	}
	return nil
}

// end ends it, as far as it was started, and removes all that it had.
func (d *daemon) end() error {
	if d.tether != nil {
		d.tether.Close()
	}
	if d.cmd != nil && d.cmd.Process != nil {
		_ = d.cmd.Wait() // with the signal
	}
	return errors.Join(dropCgroups(filepath.Base(d.dir)), os.RemoveAll(d.dir))
}

// dropCgroups removes the control groups of that name, with those in them.
func dropCgroups(name string) error {
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
	if err != nil {
		return err
	}
	for _, group := range append(groups, "/sys/fs/cgroup/"+name) {
		var dirs []string
		_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, d := range slices.Backward(dirs) {
			if err := os.Remove(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropImages removes all images but busybox.
func (d *daemon) dropImages() {
	ctx := context.Background()
	c, err := client.New(client.WithHost(d.host))
	if err != nil {
		return
	}
	defer c.Close()
	images, err := c.ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		return
	}
	for _, im := range images.Items {
		if !slices.ContainsFunc(im.RepoTags, func(tag string) bool { return strings.HasSuffix(tag, busybox) }) {
			_, _ = c.ImageRemove(ctx, im.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		}
	}
}

// held is what it holds of anybody's sandboxes.
func (d *daemon) held(t *testing.T) []string {
	t.Helper()
	c, err := client.New(client.WithHost(d.host))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var list []string
	containers, err := c.ContainerList(context.Background(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range containers.Items {
		list = append(list, "container "+strings.Join(x.Names, ","))
	}
	volumes, err := c.VolumeList(context.Background(), client.VolumeListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range volumes.Items {
		if !strings.Contains(x.Name, "-guest-") {
			list = append(list, "volume "+x.Name)
		}
	}
	return list
}

// held is what the engine holds of anybody's sandboxes.
func held(t *testing.T) []string {
	t.Helper()
	needEngine(t)
	return engine.held(t)
}

// inside calls fn in its network namespace, where its loopback is.
func (d *daemon) inside(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", d.cmd.Process.Pid))
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// inside calls fn in the engine's network namespace.
func inside(fn func() error) error { return engine.inside(fn) }

// dial connects to an address of its machine.
func (d *daemon) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	err = d.inside(func() (err error) {
		var to net.Dialer
		conn, err = to.DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// dialInside connects to an address of the engine's machine.
func dialInside(ctx context.Context, address string) (net.Conn, error) {
	return engine.dial(ctx, address)
}

// serve starts a registry at an address of its machine.
func (d *daemon) serve(t testing.TB, address string) *testimage.Registry {
	t.Helper()
	var l net.Listener
	err := d.inside(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return testimage.ServeOn(t, l, func(ctx context.Context, _, addr string) (net.Conn, error) { return d.dial(ctx, addr) })
}

// serve starts a registry that the engine can reach.
func serve(t testing.TB) *testimage.Registry {
	t.Helper()
	needEngine(t)
	return engine.serve(t, "127.0.0.1:0")
}
