package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// DefaultContext is the name of the context that has no server: commands use url, or else this machine.
const DefaultContext = "default"

// A Context is a server that commands can use by a name.
type Context struct {
	URL     string `yaml:"url" doc:"address of the server, as in url"`
	Token   Secret `yaml:"token" doc:"bearer token for the server: env:NAME or file:/path"`
	Project string `yaml:"project" doc:"project of sandboxes that name none; empty means the first one of the token"`
}

// useContext gives url, token and project the values of the context that the setting context names. The values have the
// precedence of the source that names the context.
func (c *Config) useContext(s *schema) error {
	if c.Context == DefaultContext {
		return nil
	}
	selected := s.findSetting("context")
	one := c.Contexts[c.Context]
	if one == nil {
		advice := "atoll login URL adds one"
		if near := Nearest(c.Context, slices.Collect(maps.Keys(c.Contexts))); near != "" {
			advice = "the nearest known one is " + near
		}
		return fmt.Errorf("%s: no context is called %q: %s", DescribeOrigin(selected.from, "context"), c.Context, advice)
	}
	url, token, project := s.findSetting("url"), s.findSetting("token"), s.findSetting("project")
	switch {
	case url.findRank() > selected.findRank():
		return nil
	case url.findRank() == selected.findRank() && url.findRank() > rankFile:
		return fmt.Errorf("%s and %s both name a server: leave one out", selected.from, url.from)
	}
	outranked := url.findRank() > rankFile // then its token is not for the server of the context
	from := "context " + c.Context
	url.replaceValue(one.URL, from)
	switch {
	case token.findRank() > rankFile && token.findRank() >= selected.findRank():
	case !one.Token.IsZero():
		token.replaceValue(one.Token, from)
	case token.findRank() <= rankFile || outranked:
		token.replaceValue(Secret{}, "default") // the file has the token of serve
	}
	if project.findRank() <= rankFile || project.findRank() < selected.findRank() {
		project.replaceValue(atoll.DefaultProject, "default")
		if one.Project != "" {
			project.replaceValue(one.Project, from)
		}
	}
	return nil
}

// The precedence of the sources of settings.
const (
	rankDefault = iota
	rankFile
	rankVariable
	rankFlag
)

// findRank returns the precedence of the source of the value.
func (l *setting) findRank() int {
	switch {
	case l.from == "default":
		return rankDefault
	case strings.HasPrefix(l.from, "--"):
		return rankFlag
	case isVariable(l.from), l.alias != "" && l.from == l.alias:
		return rankVariable
	}
	return rankFile
}

func (l *setting) replaceValue(value any, from string) {
	l.field.Set(reflect.ValueOf(value))
	l.from = from
}

// checkContexts calls bad with the key of each invalid value of a context.
func (c *Config) checkContexts(bad func(key string, err error)) {
	for name, one := range c.Contexts {
		key := "contexts." + name
		if name == DefaultContext {
			bad(key+".url", fmt.Errorf("the context %s is the one without a server: use another name", name))
		}
		if one.URL == "" {
			bad(key+".url", fmt.Errorf("write it like http://host:port or unix:///path"))
		}
		bad(key+".url", checkURL(one.URL))
		if one.Project != "" && !atoll.ValidName(one.Project) {
			bad(key+".project", fmt.Errorf("%q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", one.Project))
		}
	}
}
