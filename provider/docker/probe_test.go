//go:build linux

package docker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// runProberEnv makes this program probe the engine at that address, and print the Probe as JSON.
const runProberEnv = "ATOLL_DOCKER_TEST_PROBER"

func runProber(host string) error {
	dir, err := os.MkdirTemp("", "atoll-prober-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := docker.New(docker.Options{Dir: dir, Host: host, Plain: true})
	if err != nil {
		return err
	}
	defer p.Close()
	return json.NewEncoder(os.Stdout).Encode(atoll.ProbeProvider(context.Background(), p))
}

// probeAs probes as the user with that uid.
func probeAs(t *testing.T, uid uint32, host string, env ...string) atoll.Probe {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = append(env, runProberEnv+"="+host, "TMPDIR=/tmp", "HOME=/")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	out, err := cmd.Output()
	var found atoll.Probe
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil {
		t.Fatalf("probe: %v, %q", err, out)
	}
	return found
}

// wantProbe checks that a probe failed, with a one-line reason and a fix.
func wantProbe(t *testing.T, got atoll.Probe, reason, fix string) {
	t.Helper()
	if got.OK || !strings.Contains(got.Reason, reason) || !strings.Contains(got.Fix, fix) || strings.Contains(got.Reason, "\n") {
		t.Errorf("Probe is %+v\nwant a reason with %q, and a fix with %q", got, reason, fix)
	}
}

// A failed probe names the missing part and the fix.
func TestProbeWithoutEngine(t *testing.T) {
	dir := t.TempDir()
	uid := uint32(os.Getuid())
	t.Run("no socket", func(t *testing.T) {
		wantProbe(t, probeAs(t, uid, "unix://"+dir+"/none"), dir+"/none does not exist", "systemctl start docker")
	})
	t.Run("a socket without an engine", func(t *testing.T) {
		dead, err := net.Listen("unix", dir+"/dead")
		if err != nil {
			t.Fatal(err)
		}
		dead.(*net.UnixListener).SetUnlinkOnClose(false)
		dead.Close()
		wantProbe(t, probeAs(t, uid, "unix://"+dir+"/dead"), "no Docker Engine answers", "systemctl start docker")
	})
	t.Run("a socket without permission", func(t *testing.T) {
		testenv.Need(t, testenv.Root)
		shared, err := os.MkdirTemp("", "atoll-socket-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(shared)
		l, err := net.Listen("unix", shared+"/s")
		if err == nil {
			err = errors.Join(os.Chmod(shared, 0o755), os.Chmod(shared+"/s", 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		wantProbe(t, probeAs(t, 65534, "unix://"+shared+"/s"), "you may not use the Docker Engine", "usermod -aG docker")
	})
	t.Run("an old engine", func(t *testing.T) {
		old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.24")
			fmt.Fprint(w, "OK")
		}))
		defer old.Close()
		wantProbe(t, probeAs(t, uid, "tcp://"+old.Listener.Addr().String()), "too old", "19.03")
	})
	strict := httptest.NewTLSServer(http.NotFoundHandler())
	defer strict.Close()
	at := "tcp://" + strict.Listener.Addr().String()
	if err := makeCertificates(dir); err != nil {
		t.Fatal(err)
	}
	t.Run("an engine with TLS, a program without", func(t *testing.T) {
		wantProbe(t, probeAs(t, uid, at), "do not agree on TLS", "DOCKER_CERT_PATH")
	})
	t.Run("an engine with a certificate of another authority", func(t *testing.T) {
		wantProbe(t, probeAs(t, uid, at, "DOCKER_TLS_VERIFY=1", "DOCKER_CERT_PATH="+dir), "do not agree on TLS", "DOCKER_CERT_PATH")
	})
}

// An engine that rejects the client's certificate leads to a TLS error.
func TestProbeWithoutCertificate(t *testing.T) {
	needEngine(t)
	strangers := t.TempDir() // the certificate of another authority
	if err := makeCertificates(strangers); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(engine.Dir, "ca.pem"))
	if err == nil {
		err = os.WriteFile(filepath.Join(strangers, "ca.pem"), ca, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	found := probeAs(t, uint32(os.Getuid()), startTunnel(t), "DOCKER_TLS_VERIFY=1", "DOCKER_CERT_PATH="+strangers)
	wantProbe(t, found, "do not agree on TLS", "DOCKER_CERT_PATH")
}

// If the guest's program is missing or for another machine, the probe says so, and how to do
// without.
func TestProbeGuest(t *testing.T) {
	needEngine(t)
	program, err := testenv.Guest()
	if err != nil {
		t.Fatal(err)
	}
	arm := slices.Clone(program)
	arm[18] = 183 // e_machine in an ELF header: arm64
	for name, tt := range map[string]struct {
		guest       func() ([]byte, error)
		reason, fix string
	}{
		"missing":       {func() ([]byte, error) { return nil, errors.New("no atoll-guest") }, "the guest's program is missing: no atoll-guest", "make guest, or set docker.plain"},
		"another arch":  {func() ([]byte, error) { return arm, nil }, "the guest's program is for EM_AARCH64", "make guest"},
		"not a program": {func() ([]byte, error) { return []byte("text"), nil }, "the guest's program is not", "make guest"},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, func(opts *docker.Options) { opts.Guest = tt.guest })
			defer p.Close()
			wantProbe(t, atoll.ProbeProvider(t.Context(), p), tt.reason, tt.fix)
			if _, err := p.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrUnavailable {
				t.Errorf("Create: %v, want ErrUnavailable", err)
			}
			if left := heldObjects(t); len(left) > 0 {
				t.Errorf("Create left %q", left)
			}
		})
	}
}

// The probe names the limits of sandboxes without a guest.
func TestProbePlain(t *testing.T) {
	p := open(t, withoutGuest)
	defer p.Close()
	if found := atoll.ProbeProvider(t.Context(), p); !found.OK || len(found.Notes) == 0 || !strings.Contains(found.Notes[0], "docker.plain is set") {
		t.Errorf("Probe is %+v", found)
	}
}
