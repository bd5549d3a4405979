//go:build linux

package docker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// With Dial and Fetch, the provider gets each image once from Fetch, by tag or by digest.
func TestFetch(t *testing.T) {
	host := strings.TrimPrefix(needEngine(t), "unix://")
	const repo = "fetched.example.com/busybox"
	var asked []string
	p := openForTest(t, func(o *docker.Options) {
		o.Host, o.Dial = "", func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", host)
		}
		o.Fetch = func(_ context.Context, ref, as string, _ atoll.PullPolicy, _ func(atoll.Progress)) (io.ReadCloser, error) {
			asked = append(asked, ref)
			if !strings.HasPrefix(ref, repo) {
				return nil, atoll.Errorf("image", ref, atoll.ErrNotExist, "nobody has it")
			}
			tag, err := name.NewTag(as)
			if err != nil {
				return nil, err
			}
			var packed bytes.Buffer
			err = tarball.Write(tag, testimage.WithSockets(t), &packed)
			return io.NopCloser(&packed), err
		}
	})
	if err := p.Ping(t.Context()); err != nil {
		t.Errorf("Ping: %v", err)
	}
	digest := "sha256:" + strings.Repeat("a1", 32)
	for _, ref := range []string{repo, repo + "@" + digest, repo + ":latest", repo + "@" + digest} {
		if out := runShell(t, createSandbox(t, p, atoll.Spec{Image: ref}), "echo fetched"); out != "fetched" {
			t.Errorf("a sandbox of %s printed %q", ref, out)
		}
	}
	if want := []string{repo + ":latest", repo + "@" + digest}; strings.Join(asked, " ") != strings.Join(want, " ") {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	if got, err := p.ResolveImage(t.Context(), repo+"@"+digest); err != nil || got != digest {
		t.Errorf("ResolveImage: %q, %v", got, err)
	}
	if list, err := p.Images(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("Images: %+v, %v; want both names", list, err)
	}
	_, err := p.Create(t.Context(), &atoll.Spec{Image: "elsewhere.example.com/x"})
	wantKind(t, "Create of a missing image", err, atoll.ErrNotExist, "nobody has it")

	archive, err := p.Save(t.Context(), repo)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(archive)
	if err := errors.Join(err, archive.Close()); err != nil || !bytes.Contains(data, []byte(repo+":latest")) {
		t.Errorf("Save: %d bytes, without the name (%v)", len(data), err)
	}
	_, err = p.Save(t.Context(), "elsewhere.example.com/x")
	wantKind(t, "Save of a missing image", err, atoll.ErrNotExist)
}

// With Online, sandboxes with network mode on share a network whose option forbids traffic
// between them. The tests of provider/vmdocker check the isolation itself, which takes an engine
// that may change the host's filters.
func TestOnline(t *testing.T) {
	offline := openForTest(t)
	_, err := offline.Create(t.Context(), &atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}})
	wantKind(t, "Create online", err, atoll.ErrUnsupported)

	p := openForTest(t, func(o *docker.Options) { o.AllowNetworkOn = true })
	t.Cleanup(func() { dropNetwork(t, optionsOf(p).Prefix+"-online") })
	if !p.Info().Caps.NetworkOn {
		t.Error("the cap NetworkOn is not set")
	}
	on := atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}}
	a, none := createSandbox(t, p, on), createSandbox(t, p, atoll.Spec{})
	address := strings.TrimSpace(runShell(t, a, "hostname -i"))
	if net.ParseIP(address) == nil {
		t.Fatalf("an online sandbox has the address %q", address)
	}
	c, err := client.New(client.WithHost(engine.Host))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	found, err := c.NetworkInspect(t.Context(), optionsOf(p).Prefix+"-online", client.NetworkInspectOptions{})
	if n := found.Network; err != nil || n.Driver != "bridge" || n.Options["com.docker.network.bridge.enable_icc"] != "false" {
		t.Errorf("the network is %+v (%v)", n, err)
	}
	if out := runShell(t, none, "ip -o link | grep -vc ' lo:' || true"); out != "0" {
		t.Errorf("a sandbox without a network has %s devices", out)
	}
	gateway := strings.TrimSpace(runShell(t, a, "ip route | sed -n 's/default via \\([0-9.]*\\).*/\\1/p'"))
	if net.ParseIP(gateway) == nil {
		t.Errorf("an online sandbox has the gateway %q", gateway)
	}
}

// dropNetwork removes a network of the test engine.
func dropNetwork(t *testing.T, network string) {
	c, err := client.New(client.WithHost(engine.Host))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.NetworkRemove(context.WithoutCancel(t.Context()), network, client.NetworkRemoveOptions{}); err != nil {
		t.Error(err)
	}
}

// If Fetch returns ErrUnsupported, the engine pulls the image, by tag or by digest.
func TestFetchUnsupported(t *testing.T) {
	reg := serveRegistry(t)
	ref := reg.Push("itself:1", testimage.WithSockets(t))
	digest, err := testimage.WithSockets(t).Digest()
	if err != nil {
		t.Fatal(err)
	}
	p := openForTest(t, func(o *docker.Options) {
		o.Fetch = func(_ context.Context, ref, _ string, _ atoll.PullPolicy, _ func(atoll.Progress)) (io.ReadCloser, error) {
			return nil, atoll.Errorf("image", ref, atoll.ErrUnsupported, "not on this system")
		}
	})
	for _, ref := range []string{ref, strings.TrimSuffix(ref, ":1") + "@" + digest.String()} {
		if out := runShell(t, createSandbox(t, p, atoll.Spec{Image: ref}), "echo fetched"); out != "fetched" {
			t.Errorf("a sandbox of %s printed %q", ref, out)
		}
		if got, err := p.ResolveImage(t.Context(), ref); err != nil || got != digest.String() {
			t.Errorf("ResolveImage of %s: %q, %v, want %s", ref, got, err, digest)
		}
	}
	_, err = p.Create(t.Context(), &atoll.Spec{Image: "atoll-local/nowhere:1"})
	wantKind(t, "Create of a local image", err, atoll.ErrUnsupported, "not on this system")
}
