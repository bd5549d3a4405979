package stack

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// A machine of a project can use an image that only this machine's Docker Engine has.
func TestImagesOfTheEngineReachMachines(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a machine is booted")
	}
	testenv.Need(t, testenv.Root, testenv.Program("dockerd", "docker.io"), testenv.StaticBusybox)
	store := testenv.BundleStore(t)
	dir, err := os.MkdirTemp("", "atoll") // the paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Symlink(store, filepath.Join(dir, "bundles")); err != nil {
		t.Fatal(err)
	}
	const image = "only-here:1"
	host := dockerd(t, filepath.Join(dir, "docker"))
	loadBusybox(t, host, image)
	b, err := loadBuilder(t, "provider: vmdocker\nproviders: [vmdocker]\nstate_dir: "+dir+"\ndocker: {host: 'unix://"+host+"'}\nvmdocker: {cpu_count: 1}", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	begin := time.Now()
	sb, err := p.Create(t.Context(), &atoll.Spec{Project: "p", Image: image})
	defer func() {
		if err := atoll.RemoveProject(context.WithoutCancel(t.Context()), p, "p"); err != nil {
			t.Error(err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("created in %d ms", time.Since(begin).Milliseconds())
	out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"echo", "here"}})
	if err != nil || string(out) != "here\n" {
		t.Errorf("echo: %q, %v", out, err)
	}
}

// dockerd starts a Docker Engine with all its data in dir, and returns its socket.
func dockerd(t *testing.T, dir string) string {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(at("none.json"), []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(at("log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("dockerd", "--host", "unix://"+at("sock"), "--data-root", at("data"), "--exec-root", at("exec"), "--pidfile", at("pid"),
		"--config-file", at("none.json"), "--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Setpgid: true} // its mounts end with it
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := cmd.Wait(); err != nil {
			t.Errorf("dockerd: %v", err)
		}
	})
	for end := time.Now().Add(testenv.Scale(time.Minute)); ; time.Sleep(50 * time.Millisecond) {
		conn, err := net.Dial("unix", at("sock"))
		if err == nil {
			conn.Close()
			return at("sock")
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(at("log"))
			t.Fatalf("dockerd: %v\n%s", err, text)
		}
	}
}

// loadBusybox loads busybox into an engine as image.
func loadBusybox(t *testing.T, socket, image string) {
	t.Helper()
	tag, err := name.NewTag(image)
	if err != nil {
		t.Fatal(err)
	}
	busybox := testimage.Busybox(t)
	archive, w := io.Pipe()
	go func() { w.CloseWithError(tarball.Write(tag, busybox, w)) }()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	r, err := client.Post("http://engine/images/load", "application/x-tar", archive)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if said, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("load: %s %s (%v)", r.Status, said, err)
	}
}
