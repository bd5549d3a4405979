package template

import (
	"cmp"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/nearest"
	"github.com/seed46cd37a8/atoll/lifecycle"
)

// hookNames are the hooks that files can name: what is done unless they say otherwise,
// what the template does that is extended, the halves of the former, and the Setup of the
// agent, for hooks that need it done.
var hookNames = []string{"default", "base", "pull", "push", "setup"}

// A hooksForm is what a file says of hooks. A list that is not there leaves a hook as it
// is.
type hooksForm struct {
	OnColdStart    *hookList `yaml:"on_cold_start"`
	OnMessage      *hookList `yaml:"on_message"`
	OnStreamFinish *hookList `yaml:"on_stream_finish"`
	OnTerminate    *hookList `yaml:"on_terminate"`
}

// A hookList is what is done at one moment.
type hookList struct {
	items []hookItem
}

// A hookItem is a hook by name, a command, or a webhook.
type hookItem struct {
	node *yaml.Node
	name string
	hookForm
}

type hookForm struct {
	Run     []string       `yaml:"run"`
	User    string         `yaml:"user"`
	Dir     string         `yaml:"dir"`
	Env     []string       `yaml:"env"`
	Timeout atoll.Duration `yaml:"timeout"` // of the command, or of each try

	Webhook   string `yaml:"webhook"`
	Token     Secret `yaml:"token"`
	Secret    Secret `yaml:"secret"` // what is signed with
	Tries     int    `yaml:"tries"`
	PlainHTTP bool   `yaml:"plain_http"`
}

// readNode implements nodeReader.
func (l *hookList) readNode(d *decoder, at string, n *yaml.Node) {
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		items = n.Content
	}
	for _, c := range items {
		item := hookItem{node: c}
		if c.Kind == yaml.ScalarNode {
			d.text(at, c, &item.name)
		} else {
			d.table(at, c, &item.hookForm)
		}
		l.items = append(l.items, item)
	}
}

// apply gives t the hooks of f. named are those that the program has given names.
func (f *hooksForm) apply(d *decoder, t *Template, named map[string]lifecycle.HookFunc) {
	usual := lifecycle.Default()
	for _, m := range []struct {
		key   string
		list  *hookList
		hook  *lifecycle.HookFunc
		usual lifecycle.HookFunc
		join  func(...lifecycle.HookFunc) lifecycle.HookFunc
	}{
		// An error ends a creation, so what comes after it is not tried.
		{"hooks.on_cold_start", f.OnColdStart, &t.Hooks.OnColdStart, usual.OnColdStart, lifecycle.Then},
		{"hooks.on_message", f.OnMessage, &t.Hooks.OnMessage, usual.OnMessage, lifecycle.All},
		{"hooks.on_stream_finish", f.OnStreamFinish, &t.Hooks.OnStreamFinish, usual.OnStreamFinish, lifecycle.All},
		{"hooks.on_terminate", f.OnTerminate, &t.Hooks.OnTerminate, usual.OnTerminate, lifecycle.All},
	} {
		if m.list == nil {
			continue
		}
		known := map[string]lifecycle.HookFunc{"default": m.usual, "base": *m.hook, "pull": lifecycle.Pull, "push": lifecycle.Push, "setup": t.setup()}
		for name, hook := range named {
			known[name] = hook
		}
		var hooks []lifecycle.HookFunc
		for _, item := range m.list.items {
			hooks = append(hooks, item.hook(d, m.key, t, known))
		}
		*m.hook = nil
		if len(hooks) > 0 {
			*m.hook = m.join(hooks...)
		}
	}
}

// setup is a hook that does what the agent's Setup says.
func (t *Template) setup() lifecycle.HookFunc {
	var hooks []lifecycle.HookFunc
	for _, cmd := range t.Setup() {
		hooks = append(hooks, lifecycle.Command(cmd.Args, lifecycle.CommandOptions{User: cmd.User, Dir: cmd.Dir}))
	}
	return lifecycle.Then(hooks...)
}

// hook makes the hook of an item, or reports what is wrong with it.
func (i *hookItem) hook(d *decoder, at string, t *Template, known map[string]lifecycle.HookFunc) lifecycle.HookFunc {
	switch {
	case i.name != "":
		hook, ok := known[i.name]
		if !ok {
			names := make([]string, 0, len(known))
			for name := range known {
				names = append(names, name)
			}
			slices.Sort(names)
			d.unknown(at, i.node, i.name, "hook", nearest.Of(i.name, names), names)
		}
		return hook
	case len(i.Run) > 0 && i.Webhook != "":
		d.badf(i.node, "%s: run and webhook: write each as a hook of its own", at)
	case len(i.Run) > 0:
		return i.command(d, at, t)
	case i.Webhook != "":
		return i.webhook(d, at)
	default:
		d.badf(i.node, "%s: write the name of a hook, or a table with run or webhook", at)
	}
	return nil
}

func (i *hookItem) command(d *decoder, at string, t *Template) lifecycle.HookFunc {
	if !i.Token.IsZero() || !i.Secret.IsZero() || i.Tries != 0 || i.PlainHTTP {
		d.badf(i.node, "%s: token, secret, tries and plain_http are for webhooks", at)
	}
	dir := cmp.Or(i.Dir, t.WorkDir())
	if err := (&atoll.Command{Args: i.Run, User: i.User, Dir: dir, Env: i.Env, Timeout: i.Timeout}).Validate(); err != nil {
		d.badf(i.node, "%s: %w", at, err)
	}
	return lifecycle.Command(i.Run, lifecycle.CommandOptions{User: i.User, Dir: dir, Env: i.Env, Timeout: time.Duration(i.Timeout)})
}

func (i *hookItem) webhook(d *decoder, at string) lifecycle.HookFunc {
	if i.User != "" || i.Dir != "" || len(i.Env) > 0 {
		d.badf(i.node, "%s: user, dir and env are for commands", at)
	}
	if i.Token.optional || i.Secret.optional {
		d.badf(i.node, "%s: the token and the secret of a webhook cannot be optional: leave them out, or see that they are there", at)
	}
	opts := lifecycle.WebhookOptions{Timeout: time.Duration(i.Timeout), Tries: i.Tries, PlainHTTP: i.PlainHTTP}
	if !i.Token.IsZero() {
		opts.Token = i.Token.Reveal
	}
	if !i.Secret.IsZero() {
		opts.Key = i.Secret.Reveal
	}
	hook, err := lifecycle.Webhook(i.Webhook, opts)
	if err != nil {
		d.badf(i.node, "%s: %w", at, err)
	}
	return hook
}
