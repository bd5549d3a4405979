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

// beside returns a client of the test engine.
func beside(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.WithHost(needEngine(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// opened is open for a test that closes nothing itself.
func opened(t *testing.T, change ...func(*docker.Options)) *docker.Provider {
	t.Helper()
	p := open(t, change...)
	t.Cleanup(func() { p.Close() })
	return p
}

// create makes a sandbox that goes with the test.
func create(t *testing.T, p atoll.Provider, spec atoll.Spec) atoll.Sandbox {
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

// run runs a shell script in the sandbox, and returns what it prints.
func run(t *testing.T, sb atoll.Sandbox, script string) string {
	t.Helper()
	out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

// wantKind checks an error's kind, and that it says each of words.
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

// told is what the engine says of a container of the provider's.
func told(t *testing.T, p *docker.Provider, name string) container.InspectResponse {
	t.Helper()
	found, err := beside(t).ContainerInspect(t.Context(), optionsOf(p).Prefix+"-"+name, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return found.Container
}

func onNamed(name string) atoll.Network {
	return atoll.Network{Mode: atoll.NetworkNamed, Name: name}
}

// The host's network has an id, too, which is not a name.
func TestNetworkIsNamed(t *testing.T) {
	p, before := opened(t), held(t)
	host, err := beside(t).NetworkInspect(t.Context(), "host", client.NetworkInspectOptions{})
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
	if after := held(t); !slices.Equal(after, before) {
		t.Errorf("there is %q, before there was %q", after, before)
	}
}

// Containers are not kept from the host by docker's networks, which is what the
// other modes promise.
func TestNoNetworkOn(t *testing.T) {
	p := opened(t)
	for _, mode := range []atoll.NetworkMode{atoll.NetworkOn, atoll.NetworkEgress} {
		_, err := p.Create(t.Context(), &atoll.Spec{Network: atoll.Network{Mode: mode}})
		wantKind(t, string(mode), err, atoll.ErrUnsupported, string(mode), "name one of the engine's networks")
	}
}

func TestNetworkThatPublishesNothing(t *testing.T) {
	p := opened(t)
	ports := []atoll.Port{{Port: 80, Publish: true}}
	_, err := p.Create(t.Context(), &atoll.Spec{Network: onNamed(internalNetwork), Ports: ports})
	wantKind(t, "Create", err, atoll.ErrInvalid, internalNetwork, "internal")
	create(t, p, atoll.Spec{Network: onNamed(internalNetwork), Ports: []atoll.Port{{Port: 80}}})
}

// A network that was removed while the sandbox did not run is missed, also when
// there is another one of its name.
func TestNetworkGoes(t *testing.T) {
	const name = "comes-and-goes"
	p, c := opened(t), beside(t)
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
	sb := create(t, p, atoll.Spec{Network: onNamed(name)})
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
	if err := create(t, p, atoll.Spec{ID: sb.ID(), Network: onNamed(name)}).Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// What is published is published on loopback only.
func TestPublishedOnLoopback(t *testing.T) {
	p := opened(t)
	sb := create(t, p, atoll.Spec{Network: onNamed(openNetwork), Ports: []atoll.Port{{Port: atoll.AgentPort, Publish: true}, {Port: 80}}})
	for port, hosts := range told(t, p, "session-"+sb.ID()).NetworkSettings.Ports {
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
	if gateway := strings.Fields(run(t, sb, "ip route"))[2]; gateway != "" {
		if c, err := dialInside(t.Context(), net.JoinHostPort(gateway, number)); err == nil {
			c.Close()
			t.Errorf("the port can be reached at %s, too", gateway)
		}
	}
}

// Volumes of a stopped sandbox are served by a container that has no network.
func TestCaretakerHasNoNetwork(t *testing.T) {
	p := opened(t)
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
	c := told(t, p, "caretaker-"+sb.ID())
	if c.HostConfig.NetworkMode != "none" || len(c.HostConfig.PortBindings) > 0 {
		t.Errorf("the caretaker has network %q and ports %v", c.HostConfig.NetworkMode, c.HostConfig.PortBindings)
	}
	if slices.ContainsFunc(c.Mounts, func(m container.MountPoint) bool { return strings.Contains(m.Name, "-cache-") }) {
		t.Errorf("the caretaker has the mounts %+v", c.Mounts)
	}
}

// The data volume is the work directory and /.data, and survives a rebuild under
// both names.
func TestDataSurvivesRebuild(t *testing.T) {
	p := opened(t)
	sb := create(t, p, atoll.Spec{Cmd: []string{"sleep", "1000"}})
	run(t, sb, "echo of work > /work/w && echo of data > /.data/d")
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := create(t, p, atoll.Spec{ID: sb.ID()})
	const want = "of work\nof data\nof work\nof data"
	if got := run(t, again, "cat /work/w /work/d /.data/w /.data/d"); got != want {
		t.Errorf("after the rebuild there is %q, want %q", got, want)
	}
	if got := told(t, p, "session-"+again.ID()).Mounts; !slices.ContainsFunc(got, func(m container.MountPoint) bool {
		return m.Destination == "/.data" && m.Name == optionsOf(p).Prefix+"-data-"+sb.ID()
	}) {
		t.Errorf("the mounts are %+v", got)
	}
}

func TestRuntime(t *testing.T) {
	p := opened(t, func(o *docker.Options) { o.Runtime = otherRuntime })
	sb := create(t, p, atoll.Spec{})
	if got := told(t, p, "session-"+sb.ID()).HostConfig.Runtime; got != otherRuntime {
		t.Errorf("the runtime is %q, want %q", got, otherRuntime)
	}
	unknown := opened(t, func(o *docker.Options) { o.Runtime = "kata" })
	_, err := unknown.Create(t.Context(), &atoll.Spec{})
	wantKind(t, "Create", err, atoll.ErrInvalid, `no runtime "kata"`, otherRuntime, "runc")
}

// The test engine has no GPUs: it is asked, and says so.
func TestGPUs(t *testing.T) {
	p := opened(t)
	for gpus, want := range map[atoll.GPUs]container.DeviceRequest{
		"all":        {Count: -1},
		"2":          {Count: 2},
		"device=0,1": {DeviceIDs: []string{"0", "1"}},
	} {
		_, err := p.Create(t.Context(), &atoll.Spec{Resources: atoll.Resources{GPUs: gpus}})
		wantKind(t, "Create with "+string(gpus), err, atoll.ErrUnavailable, "no GPUs")
		sb := create(t, p, atoll.Spec{NoStart: true, Resources: atoll.Resources{GPUs: gpus}})
		got := told(t, p, "session-"+sb.ID()).HostConfig.DeviceRequests
		if len(got) != 1 || got[0].Count != want.Count || !slices.Equal(got[0].DeviceIDs, want.DeviceIDs) || got[0].Capabilities[0][0] != "gpu" {
			t.Errorf("%s asks for %+v, want %+v", gpus, got, want)
		}
	}
}
