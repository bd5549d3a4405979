package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/passwd"
)

// Podman's service speaks the Engine API. Here is what it has to be asked for in other
// words.

// controllers are what of cgroups Podman can use, as it says where it speaks for
// itself. To those who take it for Docker it speaks of the machine, and a rootless
// one ignores limits that it cannot set.
func (p *Provider) controllers(ctx context.Context) ([]string, error) {
	direct := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return p.engine.Dialer()(ctx) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/v4.0.0/libpod/info", http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := direct.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("podman's own info: %s", answer.Status)
	}
	var info struct {
		Host struct{ CgroupControllers []string }
	}
	if err := json.NewDecoder(answer.Body).Decode(&info); err != nil {
		return nil, fmt.Errorf("podman's own info: %w", err)
	}
	return info.Host.CgroupControllers, nil
}

// logDriver is the one of the engine's that keeps bytes as they are.
func (f facts) logDriver() string {
	if f.podman {
		return "k8s-file"
	}
	return "local"
}

// place turns the mounts of a container into what Podman understands. It makes a line
// of text of each, in which a comma begins an option, and fills new volumes with what
// the image has in their place; of a bind, in which a colon does, it can be asked not to.
func (f facts) place(h *container.HostConfig) error {
	if !f.podman {
		return nil
	}
	var others []mount.Mount
	for _, m := range h.Mounts {
		options := ":rw"
		if m.ReadOnly {
			options = ":ro"
		}
		separator := ":"
		switch m.Type {
		case mount.TypeVolume:
			h.Binds = append(h.Binds, m.Source+":"+m.Target+options+",nocopy")
		case mount.TypeBind:
			h.Binds = append(h.Binds, m.Source+":"+m.Target+options)
		default:
			others = append(others, m)
			separator = ","
		}
		if strings.Contains(m.Source+m.Target, separator) {
			return atoll.Errorf("create", "", atoll.ErrUnsupported, "mount target %q: podman cannot be told of a %q in its name or its source's", m.Target, separator)
		}
	}
	h.Mounts = others
	return nil
}

// sources fails if something is not there that the sandbox mounts of the engine's
// machine, as far as that is this one: Podman would make a directory of that name.
func (p *Provider) sources(f facts, spec *atoll.Spec) error {
	if !f.podman || p.opts.Dial != nil || !strings.HasPrefix(p.engine.DaemonHost(), "unix://") {
		return nil
	}
	for _, m := range spec.Mounts {
		if m.Type != atoll.MountBind {
			continue
		}
		if _, err := os.Stat(m.Source); errors.Is(err, fs.ErrNotExist) {
			return atoll.E("mount", "", atoll.ErrNotExist, err)
		}
	}
	return nil
}

// openRoot lets root write to the root directory of a container, as with Docker:
// Podman's cannot be written to without capabilities.
func (c *creation) openRoot(ctx context.Context) error {
	f, err := c.p.facts(ctx)
	if err != nil || !f.podman || c.spec.ReadOnlyRoot {
		return err
	}
	return c.p.putDirs(ctx, c.container, "/", passwd.Root(), "./")
}
