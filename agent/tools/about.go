package tools

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// About describes the sandboxes of the kit to a model, in short sentences: their network, image, limits,
// work directory and lifetime, as far as they are known before a sandbox exists. sandbox_open describes
// the sandbox itself.
func (k *Kit) About() string {
	spec, err := k.sandboxSpec("")
	if err != nil {
		return ""
	}
	caps := k.provider.Info().Caps
	about := []string{describeNetwork(spec.Network, caps)}
	if spec.Image != "" {
		about = append(about, describeImage(spec.Image))
	}
	about = append(about, describeLimits(spec.Resources, caps))
	if w := spec.Workspace; w != (atoll.WorkspaceRef{}) && k.Offers("sandbox_open") {
		about = append(about, describeWorkspace("", w, !path.IsAbs(w.Source) && w.Source != ""))
	}
	if k.Offers("sandbox_open") {
		about = append(about, describeLifetime(k.opts.IdleTimeout, k.opts.MaxLifetime))
	}
	return joinSentences(about...)
}

// shortNetwork describes the network of the kit's sandboxes in a short sentence, "" if it cannot.
func (k *Kit) shortNetwork() string {
	spec, err := k.sandboxSpec("")
	switch {
	case err != nil:
		return ""
	case spec.Network.Mode == atoll.NetworkEgress:
		return "It reaches only the hosts that sandbox_open lists."
	case spec.Network.Mode != "" && spec.Network.Mode != atoll.NetworkNone || !k.provider.Info().Caps.NetworkNone:
		return "It has a network."
	}
	return "It has no network: packages cannot be downloaded."
}

// joinSentences joins the sentences that are not empty.
func joinSentences(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), " ")
}

// maxHosts is the maximum number of hosts in a description.
const maxHosts = 10

// describeNetwork describes a network in a sentence.
func describeNetwork(n atoll.Network, caps atoll.Caps) string {
	hosts := strings.Join(n.Allow[:min(len(n.Allow), maxHosts)], ", ")
	if more := len(n.Allow) - maxHosts; more > 0 {
		hosts += fmt.Sprintf(" and %d more", more)
	}
	switch n.Mode {
	case "", atoll.NetworkNone:
		if !caps.NetworkNone {
			return "Network: that of the machine it runs on."
		}
		return "Network: none, so nothing can be downloaded or installed from the Internet."
	case atoll.NetworkEgress:
		return "Network: only " + hosts + "; all other hosts are refused."
	case atoll.NetworkOn:
		if hosts != "" {
			return "Network: the Internet, and " + hosts + "."
		}
		return "Network: the Internet, but not the user's machine and its networks."
	}
	return "Network: " + n.Name + ", a network of the container engine."
}

// describeImage describes an image in a sentence.
func describeImage(image string) string {
	if image == "host" {
		return "Image: the programs of the machine it runs on, read-only."
	}
	if frontmatter.OfMachine(image) {
		return "Image: " + image + ", which only this machine has."
	}
	return "Image: " + image + "."
}

// describeLimits describes the limits that a provider enforces in a sentence; "" if there are none.
func describeLimits(r atoll.Resources, caps atoll.Caps) string {
	r = r.WithDefaults()
	var all []string
	if caps.MemoryLimit && r.Memory > 0 {
		all = append(all, formatBytes(r.Memory)+" of memory")
	}
	if caps.CPULimit && r.CPUs > 0 {
		all = append(all, fmt.Sprintf("%g CPUs", r.CPUs))
	}
	if (caps.DiskLimit || caps.DiskWatch) && r.Disk > 0 {
		all = append(all, formatBytes(r.Disk)+" of disk")
	}
	if caps.ProcessLimit && r.Processes > 0 {
		all = append(all, fmt.Sprintf("%d processes", r.Processes))
	}
	if len(all) == 0 {
		return ""
	}
	return "Limits: " + strings.Join(all, ", ") + "."
}

// formatBytes formats a size as people write it, like 2 GiB.
func formatBytes(b atoll.Bytes) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if size := atoll.Bytes(1) << (10 * (3 - i)); b >= size {
			return fmt.Sprintf("%.4g %s", float64(b)/float64(size), unit)
		}
	}
	return fmt.Sprintf("%d bytes", b)
}

// describeWorkspace says whose files are in the work directory.
func describeWorkspace(workdir string, w atoll.WorkspaceRef, copied bool) string {
	dir := strings.TrimSpace("The work directory " + workdir)
	switch {
	case w == (atoll.WorkspaceRef{}):
		return dir + " belongs to the sandbox, and its files end with it."
	case copied:
		return dir + " is a clone of the user's git repository: changes do not reach the user unless you push them, and end with the sandbox."
	case w.ReadOnly:
		return dir + " is the user's own directory, read-only."
	}
	return dir + " is the user's own directory, live and no copy: every change and deletion is one of the user's files."
}

// describeLifetime says when a session's sandbox ends.
func describeLifetime(idle, lifetime atoll.Duration) string {
	var all []string
	if idle > 0 {
		all = append(all, shortDuration(idle)+" without use")
	}
	if lifetime > 0 {
		all = append(all, shortDuration(lifetime)+" at the latest")
	}
	if len(all) == 0 {
		return ""
	}
	return "Lifetime: the sandbox is removed after " + strings.Join(all, ", and after ") + "."
}

// shortDuration formats a duration without units of zero, like 4h.
func shortDuration(d atoll.Duration) string {
	text := time.Duration(d).Round(time.Second).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-len(zero)+1]
		}
	}
	return text
}

// lookTime limits the command that looks at the programs of a sandbox.
const lookTime = 10 * time.Second

// lookCommand prints facts about a sandbox, one a line: programs with their versions, whether a clone is
// in the work directory, whether apt-get can install packages.
const lookCommand = `for p in python3 node git; do command -v $p >/dev/null && v=$($p --version) && echo "has $p ${v##*[ v]}"; done
for p in go rustc java gcc make pip3 npm curl jq rg; do command -v $p >/dev/null && echo "has $p"; done
[ -n "$ATOLL_WORKSPACE_COMMIT" ] && echo clone
command -v apt-get >/dev/null && ! [ -w /var/lib/dpkg ] && echo noapt
true`

// A lookResult has the facts that lookCommand prints.
type lookResult struct {
	done     bool
	programs []string
	cloned   bool
	noApt    bool
}

// lookInside returns the facts about the inside of a sandbox. It runs one command, once; if that fails,
// the result has no facts.
func (d *sandboxState) lookInside(ctx context.Context) (r lookResult) {
	d.mu.Lock()
	r = d.look
	d.mu.Unlock()
	if r.done {
		return r
	}
	cmd := &atoll.Command{Timeout: atoll.Duration(lookTime)}
	err := d.startCommand(ctx, lookCommand, cmd, func(cmd *atoll.Command) error {
		ran, err := jobs.Run(ctx, d.sandbox, cmd, 4096, nil)
		if err == nil && ran.Exit.Success() {
			r = parseLook(ran.Stdout.Data)
		}
		return err
	})
	if err == nil {
		r.done = true
		d.mu.Lock()
		d.look = r
		d.mu.Unlock()
	}
	return r
}

// parseLook parses the output of lookCommand.
func parseLook(output []byte) (r lookResult) {
	for line := range bytes.Lines(output) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(strings.ToValidUTF8(string(line), "")), " "); key {
		case "has":
			r.programs = append(r.programs, value)
		case "clone":
			r.cloned = true
		case "noapt":
			r.noApt = true
		}
	}
	return r
}

// describeSandbox describes the sandbox of a session to a model, in short sentences.
func (c *call) describeSandbox(ctx context.Context, d *sandboxState, o *session.OpenResult) string {
	st, err := d.sandbox.Status(ctx)
	if err != nil {
		return "" // the sandbox is open nevertheless
	}
	look := d.lookInside(ctx)
	image := st.Image
	if image == "" {
		image = d.image
	}
	programs, apt := "", ""
	if len(look.programs) > 0 {
		programs = "It has " + strings.Join(look.programs, ", ") + "."
	}
	if look.noApt {
		apt = "apt-get cannot install packages here."
	}
	lifetime := atoll.Duration(0)
	if !o.Expires.IsZero() {
		lifetime = atoll.Duration(time.Until(o.Expires).Round(time.Minute))
	}
	return joinSentences(describeImage(image), programs, apt, describeNetwork(st.Spec.Network, st.Caps), describeLimits(st.Spec.Resources, st.Caps),
		describeWorkspace(d.workdir, st.Spec.Workspace, look.cloned), describeLifetime(o.IdleTimeout, lifetime))
}
