package mcpconfig

import (
	"errors"
	"path/filepath"
	"slices"
)

// DenyFile returns the settings file of Claude Code with its permissions: that of the project in a directory,
// or if that is "", that of the user.
func DenyFile(dirs Dirs, project string) string {
	if project == "" && dirs.Claude != "" {
		return filepath.Join(dirs.Claude, "settings.json")
	}
	if project == "" {
		project = dirs.Home
	}
	return filepath.Join(project, ".claude", "settings.json")
}

// Deny returns settings of Claude Code in which a tool is denied, or with deny false no longer is.
func Deny(text []byte, tool string, deny bool) ([]byte, error) {
	if len(text) == 0 {
		text = []byte("{}\n")
	}
	doc, err := parseDocument(text)
	if err != nil {
		return nil, err
	}
	all, err := decodeObject(text)
	if err != nil {
		return nil, err
	}
	permissions, ok := all["permissions"].(map[string]any)
	if all["permissions"] != nil && !ok {
		return nil, errors.New("permissions is not an object")
	}
	list, ok := permissions["deny"].([]any)
	if permissions["deny"] != nil && !ok {
		return nil, errors.New("permissions.deny is not a list")
	}
	if slices.Contains(list, any(tool)) == deny {
		return text, nil
	}
	path := []string{"permissions", "deny"}
	if deny {
		return doc.setMember(path, append(list, tool))
	}
	list = slices.DeleteFunc(list, func(x any) bool { return x == tool })
	if len(list) == 0 {
		return doc.removeMember(path)
	}
	return doc.setMember(path, list)
}

// DenyText returns settings of Claude Code that deny a tool.
func DenyText(tool string) string {
	data, err := Deny(nil, tool, true)
	if err != nil {
		panic(err) // nothing is in the way
	}
	return string(data)
}
