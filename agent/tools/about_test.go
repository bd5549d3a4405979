package tools_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// limitedProvider pretends to enforce networks and limits.
type limitedProvider struct{ atoll.ProviderLayer }

func (p limitedProvider) Info() atoll.Info {
	info := p.ProviderLayer.Info()
	info.Caps.NetworkNone, info.Caps.NetworkOn, info.Caps.Egress = true, true, true
	info.Caps.MemoryLimit, info.Caps.CPULimit, info.Caps.DiskLimit, info.Caps.ProcessLimit = true, true, true, true
	return info
}

// The description of future sandboxes follows their spec.
func TestAbout(t *testing.T) {
	p, err := mock.New(mock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	hosts := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}
	const none = "Network: none, so nothing can be downloaded or installed from the Internet."
	for _, tt := range []struct {
		opts tools.Options
		want string
	}{
		{tools.Options{}, none + " Limits: 2 GiB of memory, 4 GiB of disk, 1024 processes."},
		{tools.Options{IdleTimeout: 1800e9, MaxLifetime: 4 * 3600e9}, none + " Limits: 2 GiB of memory, 4 GiB of disk, 1024 processes. Lifetime: the sandbox is removed after 30m without use, and after 4h at the latest."},
		{
			tools.Options{Sandbox: atoll.Spec{
				Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"pypi.org", "*.npmjs.org"}}, Workspace: atoll.WorkspaceRef{Source: "/home/me/src"},
				Resources: atoll.Resources{Memory: 1536 << 20, CPUs: 1.5, Disk: atoll.Unlimited, Processes: atoll.Unlimited},
			}, Images: frontmatter.Images{Shortcuts: map[string]string{"": "host"}}},
			"Network: only pypi.org, *.npmjs.org; all other hosts are refused. Image: the programs of the machine it runs on, read-only. Limits: 1.5 GiB of memory, 1.5 CPUs. " +
				"The work directory is the user's own directory, live and no copy: every change and deletion is one of the user's files.",
		},
		{
			tools.Options{Sandbox: atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: hosts}, Workspace: atoll.WorkspaceRef{Source: "https://example.com/x.git"}}},
			"Network: only a, b, c, d, e, f, g, h, i, j and 2 more; all other hosts are refused. Limits: 2 GiB of memory, 4 GiB of disk, 1024 processes. " +
				"The work directory is a clone of the user's git repository: changes do not reach the user unless you push them, and end with the sandbox.",
		},
		{
			tools.Options{Agent: &frontmatter.Sandbox{Mode: frontmatter.ModeCompute, Runtime: "debian:13", AllowNetwork: true}, IdleTimeout: 1},
			"Network: the Internet, but not the user's machine and its networks. Image: debian:13. Limits: 2 GiB of memory, 4 GiB of disk, 1024 processes.",
		},
	} {
		k, err := tools.New(limitedProvider{atoll.ProviderLayer{Provider: p}}, tt.opts)
		if err != nil {
			t.Fatal(err)
		}
		if got := k.About(); got != tt.want {
			t.Errorf("%+v:\n%s\nwant\n%s", tt.opts, got, tt.want)
		}
		k.Close()
	}
}

// sandbox_open describes the sandbox that it returns, and looks inside once.
func TestAboutOpenSandbox(t *testing.T) {
	b := newBench(t, tools.Options{IdleTimeout: 60e9, MaxLifetime: 3600e9})
	about := fmt.Sprint(b.call("sandbox_open", m{}).wantFields("status", "ready").out["about"])
	for _, want := range []string{
		"Image: the programs of the machine", "Network: that of the machine", "belongs to the sandbox", "removed after 1m without use, and after ",
	} {
		if !strings.Contains(about, want) {
			t.Errorf("about is %q, want %q in it", about, want)
		}
	}
	if strings.Contains(about, "Limits") {
		t.Errorf("about of a sandbox without limits: %s", about)
	}
	if again := b.call("sandbox_open", m{}).out["about"]; strings.Contains(about, "It has ") && !strings.Contains(fmt.Sprint(again), "It has ") {
		t.Errorf("about is %q, then %q", about, again)
	}
}
