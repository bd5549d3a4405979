//go:build linux

package docker_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// openForTest is like open, and closes the provider after the test.
func openForTest(t *testing.T, change ...func(*docker.Options)) *docker.Provider {
	t.Helper()
	p := open(t, change...)
	t.Cleanup(func() { p.Close() })
	return p
}

// createSandbox creates a sandbox, and removes it after the test.
func createSandbox(t *testing.T, p atoll.Provider, spec atoll.Spec) atoll.Sandbox {
	t.Helper()
	sb, err := p.Create(t.Context(), &spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Remove(context.WithoutCancel(t.Context()), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
	})
	return sb
}

// runShell runs a shell script in the sandbox, and returns its output.
func runShell(t *testing.T, sb atoll.Sandbox, script string) string {
	t.Helper()
	out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

// wantKind checks the kind of an error, and that its text contains all words.
func wantKind(t *testing.T, what string, err error, kind atoll.Kind, words ...string) {
	t.Helper()
	if err == nil || atoll.KindOf(err) != kind {
		t.Errorf("%s: %v, want %q", what, err, kind)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v, want %q in it", what, err, w)
		}
	}
}

// inspectContainer returns the engine's description of a container of the provider.
func inspectContainer(t *testing.T, p *docker.Provider, name string) container.InspectResponse {
	t.Helper()
	found, err := engineClient(t).ContainerInspect(t.Context(), optionsOf(p).Prefix+"-"+name, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return found.Container
}

func onNamed(name string) atoll.Network {
	return atoll.Network{Mode: atoll.NetworkNamed, Name: name}
}

// Create accepts networks by name only. The host's network has an id, too.
func TestNetworkByNameOnly(t *testing.T) {
	p, before := openForTest(t), heldObjects(t)
	host, err := engineClient(t).NetworkInspect(t.Context(), "host", client.NetworkInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{host.Network.ID, host.Network.ID[:12], host.Network.ID[:1]} {
		_, err := p.Create(t.Context(), &atoll.Spec{Network: onNamed(name)})
		wantKind(t, "Create on "+name, err, atoll.ErrNotExist, name)
	}
	for _, name := range []string{"host", "none", "default"} {
		_, err := p.Create(t.Context(), &atoll.Spec{Network: onNamed(name)})
		wantKind(t, "Create on "+name, err, atoll.ErrInvalid, name)
	}
	if after := heldObjects(t); !slices.Equal(after, before) {
		t.Errorf("the engine has %q, want %q", after, before)
	}
}

// Containers on docker's networks can reach the host, so the provider does not support the
// network modes that promise otherwise.
func TestNetworkModesUnsupported(t *testing.T) {
	p := openForTest(t)
	for _, mode := range []atoll.NetworkMode{atoll.NetworkOn, atoll.NetworkEgress} {
		_, err := p.Create(t.Context(), &atoll.Spec{Network: atoll.Network{Mode: mode}})
		wantKind(t, string(mode), err, atoll.ErrUnsupported, string(mode), "name one of the engine's networks")
	}
}

func TestPublishOnInternalNetwork(t *testing.T) {
	p := openForTest(t)
	ports := []atoll.Port{{Port: 80, Publish: true}}
	_, err := p.Create(t.Context(), &atoll.Spec{Network: onNamed(internalNetwork), Ports: ports})
	wantKind(t, "Create", err, atoll.ErrInvalid, internalNetwork, "internal")
	createSandbox(t, p, atoll.Spec{Network: onNamed(internalNetwork), Ports: []atoll.Port{{Port: 80}}})
}

// Start fails if the sandbox's network was removed, even if there is a new network with its
// name.
func TestNetworkRemoved(t *testing.T) {
	const name = "comes-and-goes"
	p, c := openForTest(t), engineClient(t)
	add := func() {
		if _, err := c.NetworkCreate(t.Context(), name, client.NetworkCreateOptions{Driver: "bridge"}); err != nil {
			t.Fatal(err)
		}
	}
	drop := func() {
		if _, err := c.NetworkRemove(context.WithoutCancel(t.Context()), name, client.NetworkRemoveOptions{}); err != nil {
			t.Error(err)
		}
	}
	add()
	sb := createSandbox(t, p, atoll.Spec{Network: onNamed(name)})
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	drop()
	wantKind(t, "Start", sb.Start(t.Context()), atoll.ErrNotExist, name, "create it again")
	add()
	defer drop()
	wantKind(t, "Start", sb.Start(t.Context()), atoll.ErrNotExist, name, "create it again")
	if st, err := sb.Status(t.Context()); err != nil || st.State != atoll.StateStopped {
		t.Errorf("the state is %q (%s), %v; want %q", st.State, st.Reason, err, atoll.StateStopped)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := createSandbox(t, p, atoll.Spec{ID: sb.ID(), Network: onNamed(name)}).Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// The engine publishes ports on loopback only.
func TestPublishedOnLoopback(t *testing.T) {
	p := openForTest(t)
	sb := createSandbox(t, p, atoll.Spec{Network: onNamed(openNetwork), Ports: []atoll.Port{{Port: atoll.AgentPort, Publish: true}, {Port: 80}}})
	for port, hosts := range inspectContainer(t, p, "session-"+sb.ID()).NetworkSettings.Ports {
		for _, b := range hosts {
			if port.Num() != atoll.AgentPort || b.HostIP.String() != "127.0.0.1" {
				t.Errorf("%v is published at %v", port, b)
			}
		}
	}
	st, err := sb.Status(t.Context())
	if err != nil || len(st.Ports) != 1 {
		t.Fatalf("Status: %+v, %v", st.Ports, err)
	}
	_, number, _ := net.SplitHostPort(st.Ports[0].Address)
	if gateway := strings.Fields(runShell(t, sb, "ip route"))[2]; gateway != "" {
		if c, err := dialInEngine(t.Context(), net.JoinHostPort(gateway, number)); err == nil {
			c.Close()
			t.Errorf("the port is also published at %s", gateway)
		}
	}
}

// The caretaker of a stopped sandbox's volumes has no network and no cache.
func TestCaretakerHasNoNetwork(t *testing.T) {
	p := openForTest(t)
	t.Cleanup(func() {
		if err := p.RemoveProject(context.WithoutCancel(t.Context()), "caretaken"); err != nil {
			t.Error(err)
		}
	})
	sb, err := p.Create(t.Context(), &atoll.Spec{
		Project: "caretaken", Network: onNamed(openNetwork), Ports: []atoll.Port{{Port: 80, Publish: true}}, Cache: true,
	})
	if err == nil {
		err = sb.Stop(t.Context(), 0)
	}
	if err == nil {
		err = atoll.WriteFile(t.Context(), sb, "f", []byte("x"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := inspectContainer(t, p, "caretaker-"+sb.ID())
	if c.HostConfig.NetworkMode != "none" || len(c.HostConfig.PortBindings) > 0 {
		t.Errorf("the caretaker has network %q and ports %v", c.HostConfig.NetworkMode, c.HostConfig.PortBindings)
	}
	if slices.ContainsFunc(c.Mounts, func(m container.MountPoint) bool { return strings.Contains(m.Name, "-cache-") }) {
		t.Errorf("the caretaker has the mounts %+v", c.Mounts)
	}
}

// The data volume is mounted at the work directory and at /.data, and survives a rebuild at
// both.
func TestDataSurvivesRebuild(t *testing.T) {
	p := openForTest(t)
	sb := createSandbox(t, p, atoll.Spec{Cmd: []string{"sleep", "1000"}})
	runShell(t, sb, "echo of work > /work/w && echo of data > /.data/d")
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := createSandbox(t, p, atoll.Spec{ID: sb.ID()})
	const want = "of work\nof data\nof work\nof data"
	if got := runShell(t, again, "cat /work/w /work/d /.data/w /.data/d"); got != want {
		t.Errorf("after the rebuild, the files hold %q, want %q", got, want)
	}
	if got := inspectContainer(t, p, "session-"+again.ID()).Mounts; !slices.ContainsFunc(got, func(m container.MountPoint) bool {
		return m.Destination == "/.data" && m.Name == optionsOf(p).Prefix+"-data-"+sb.ID()
	}) {
		t.Errorf("the mounts are %+v", got)
	}
}

func TestRuntime(t *testing.T) {
	p := openForTest(t, func(o *docker.Options) { o.Runtime = otherRuntime })
	sb := createSandbox(t, p, atoll.Spec{})
	if got := inspectContainer(t, p, "session-"+sb.ID()).HostConfig.Runtime; got != otherRuntime {
		t.Errorf("the runtime is %q, want %q", got, otherRuntime)
	}
	unknown := openForTest(t, func(o *docker.Options) { o.Runtime = "kata" })
	_, err := unknown.Create(t.Context(), &atoll.Spec{})
	wantKind(t, "Create", err, atoll.ErrInvalid, `no runtime "kata"`, otherRuntime, "runc")
}

// The test engine has no GPUs, and the error says so.
func TestGPUs(t *testing.T) {
	p := openForTest(t)
	for gpus, want := range map[atoll.GPUs]container.DeviceRequest{
		"all":        {Count: -1},
		"2":          {Count: 2},
		"device=0,1": {DeviceIDs: []string{"0", "1"}},
	} {
		_, err := p.Create(t.Context(), &atoll.Spec{Resources: atoll.Resources{GPUs: gpus}})
		wantKind(t, "Create with "+string(gpus), err, atoll.ErrUnavailable, "no GPUs")
		sb := createSandbox(t, p, atoll.Spec{NoStart: true, Resources: atoll.Resources{GPUs: gpus}})
		got := inspectContainer(t, p, "session-"+sb.ID()).HostConfig.DeviceRequests
		if len(got) != 1 || got[0].Count != want.Count || !slices.Equal(got[0].DeviceIDs, want.DeviceIDs) || got[0].Capabilities[0][0] != "gpu" {
			t.Errorf("%s requests %+v, want %+v", gpus, got, want)
		}
	}
}
