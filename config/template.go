package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/template"
)

// Template configures the templates.
type Template struct {
	Dir     string `yaml:"dir" form:"path" doc:"directory of templates, one .yaml file each; empty means the directory templates beside this file, if it exists"`
	Default string `yaml:"default" doc:"template of agents that name none"`
}

func defaultTemplate() Template { return Template{Default: template.ClaudeCode} }

// checkValues calls bad with the key of each invalid value.
func (t Template) checkValues(bad func(key string, err error)) {
	if !atoll.ValidName(t.Default) {
		bad("template.default", fmt.Errorf("%q: use the name of a template, like %s", t.Default, template.ClaudeCode))
	}
}

// Templates reads the built-in templates and those in template.dir, which must exist if it is set. Kinds: ErrInvalid
// and ErrAlreadyExists, with all mistakes; ErrNotExist; those of reading files.
func (c *Config) Templates() (*template.Set, error) {
	set := template.NewSet()
	if dir := c.templateDir(); dir != "" {
		if err := set.LoadDir(dir); err != nil {
			return nil, err
		}
	}
	if c.Template.Default != "" {
		if err := set.SetDefault(c.Template.Default); err != nil {
			return nil, atoll.Errorf("template", "", atoll.ErrInvalid, "%s: %w", DescribeOrigin(c.Origin("template.default"), "template.default"), err)
		}
	}
	return set, nil
}

// templateDir returns the directory of templates, or "" if none is set and the default one does not exist.
func (c *Config) templateDir() string {
	if c.Template.Dir != "" || c.file == "" {
		return c.Template.Dir
	}
	dir := filepath.Join(filepath.Dir(c.file), "templates")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return dir
}
