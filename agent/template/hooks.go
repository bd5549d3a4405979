package template

import (
	"cmp"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/internal/suggest"
)

// hookNames are the built-in hooks that files can name: the default hook, the hook of
// the extended template, the two halves of the default hooks, and the agent's Setup,
// for hooks that depend on it.
var hookNames = []string{"default", "base", "pull", "push", "setup"}

// A hooksForm is the hooks table of a file. A missing list leaves a hook unchanged.
type hooksForm struct {
	OnColdStart    *hookList `yaml:"on_cold_start"`
	OnMessage      *hookList `yaml:"on_message"`
	OnStreamFinish *hookList `yaml:"on_stream_finish"`
	OnTerminate    *hookList `yaml:"on_terminate"`
}

// A hookList lists the hooks of one moment.
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
	Timeout atoll.Duration `yaml:"timeout"` // of the command, or of each attempt

	Webhook   string `yaml:"webhook"`
	Token     Secret `yaml:"token"`
	Secret    Secret `yaml:"secret"` // the key that signs requests
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
			d.readText(at, c, &item.name)
		} else {
			d.readTable(at, c, &item.hookForm)
		}
		l.items = append(l.items, item)
	}
}

// applyHooks sets the hooks of t. named holds hooks registered by the program.
func (f *hooksForm) applyHooks(d *decoder, t *Template, named map[string]hooks.HookFunc) {
	usual := hooks.Default()
	for _, m := range []struct {
		key   string
		list  *hookList
		hook  *hooks.HookFunc
		usual hooks.HookFunc
		join  func(...hooks.HookFunc) hooks.HookFunc
	}{
		// An error ends a creation, so the hooks behind it don't run.
		{"hooks.on_cold_start", f.OnColdStart, &t.Hooks.OnColdStart, usual.OnColdStart, hooks.Then},
		{"hooks.on_message", f.OnMessage, &t.Hooks.OnMessage, usual.OnMessage, hooks.All},
		{"hooks.on_stream_finish", f.OnStreamFinish, &t.Hooks.OnStreamFinish, usual.OnStreamFinish, hooks.All},
		{"hooks.on_terminate", f.OnTerminate, &t.Hooks.OnTerminate, usual.OnTerminate, hooks.All},
	} {
		if m.list == nil {
			continue
		}
		known := map[string]hooks.HookFunc{"default": m.usual, "base": *m.hook, "pull": hooks.Pull, "push": hooks.Push, "setup": t.setupHook()}
		for name, hook := range named {
			known[name] = hook
		}
		var list []hooks.HookFunc
		for _, item := range m.list.items {
			list = append(list, item.newHook(d, m.key, t, known))
		}
		*m.hook = nil
		if len(list) > 0 {
			*m.hook = m.join(list...)
		}
	}
}

// setupHook returns a hook that runs the agent's Setup.
func (t *Template) setupHook() hooks.HookFunc {
	var list []hooks.HookFunc
	for _, cmd := range t.Setup() {
		list = append(list, hooks.Command(cmd.Args, hooks.CommandOptions{User: cmd.User, Dir: cmd.Dir}))
	}
	return hooks.Then(list...)
}

// newHook returns the hook of an item, or reports an error.
func (i *hookItem) newHook(d *decoder, at string, t *Template, known map[string]hooks.HookFunc) hooks.HookFunc {
	switch {
	case i.name != "":
		hook, ok := known[i.name]
		if !ok {
			names := make([]string, 0, len(known))
			for name := range known {
				names = append(names, name)
			}
			slices.Sort(names)
			d.reportUnknown(at, i.node, i.name, "hook", suggest.Closest(i.name, names), names)
		}
		return hook
	case len(i.Run) > 0 && i.Webhook != "":
		d.addErrorf(i.node, "%s: run and webhook: write each as a hook of its own", at)
	case len(i.Run) > 0:
		return i.newCommand(d, at, t)
	case i.Webhook != "":
		return i.newWebhook(d, at)
	default:
		d.addErrorf(i.node, "%s: write the name of a hook, or a table with run or webhook", at)
	}
	return nil
}

func (i *hookItem) newCommand(d *decoder, at string, t *Template) hooks.HookFunc {
	if !i.Token.IsZero() || !i.Secret.IsZero() || i.Tries != 0 || i.PlainHTTP {
		d.addErrorf(i.node, "%s: token, secret, tries and plain_http are for webhooks", at)
	}
	dir := cmp.Or(i.Dir, t.WorkDir())
	if err := (&atoll.Command{Args: i.Run, User: i.User, Dir: dir, Env: i.Env, Timeout: i.Timeout}).Validate(); err != nil {
		d.addErrorf(i.node, "%s: %w", at, err)
	}
	return hooks.Command(i.Run, hooks.CommandOptions{User: i.User, Dir: dir, Env: i.Env, Timeout: time.Duration(i.Timeout)})
}

func (i *hookItem) newWebhook(d *decoder, at string) hooks.HookFunc {
	if i.User != "" || i.Dir != "" || len(i.Env) > 0 {
		d.addErrorf(i.node, "%s: user, dir and env are for commands", at)
	}
	if i.Token.optional || i.Secret.optional {
		d.addErrorf(i.node, "%s: the token and the secret of a webhook cannot be optional: leave them out, or provide them", at)
	}
	opts := hooks.WebhookOptions{Timeout: time.Duration(i.Timeout), Tries: i.Tries, PlainHTTP: i.PlainHTTP}
	if !i.Token.IsZero() {
		opts.Token = i.Token.Reveal
	}
	if !i.Secret.IsZero() {
		opts.Key = i.Secret.Reveal
	}
	hook, err := hooks.Webhook(i.Webhook, opts)
	if err != nil {
		d.addErrorf(i.node, "%s: %w", at, err)
	}
	return hook
}
