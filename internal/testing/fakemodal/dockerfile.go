package fakemodal

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// An instruction is an instruction of a Dockerfile.
type instruction struct{ verb, args string }

// parseDockerfile parses the lines of a Dockerfile.
func parseDockerfile(commands []string) (list []instruction) {
	var line string
	for text := range strings.SplitSeq(strings.Join(commands, "\n"), "\n") {
		trimmed := strings.TrimSpace(text)
		if strings.HasPrefix(trimmed, "#") || line == "" && trimmed == "" {
			continue
		}
		before, more := strings.CutSuffix(strings.TrimRight(text, " \t"), `\`)
		line += before
		if more {
			line += " "
			continue
		}
		verb, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		list = append(list, instruction{strings.ToUpper(verb), strings.TrimSpace(args)})
		line = ""
	}
	return list
}

// applyConfig applies an instruction that changes only the configuration of an image. It returns false
// for other instructions.
func applyConfig(c *v1.Config, in instruction) (bool, error) {
	args := os.Expand(in.args, func(key string) string { return lookUpEnv(c.Env, key) })
	switch in.verb {
	case "ENV":
		return true, setPairs(args, func(key, value string) { c.Env = setEnv(c.Env, key, value) })
	case "LABEL":
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		return true, setPairs(args, func(key, value string) { c.Labels[key] = value })
	case "WORKDIR":
		c.WorkingDir = path.Join("/", c.WorkingDir, args)
		if path.IsAbs(args) {
			c.WorkingDir = path.Clean(args)
		}
	case "USER":
		c.User = args
	case "ENTRYPOINT":
		c.Entrypoint = commandLine(in.args)
		c.Cmd = nil
	case "CMD":
		c.Cmd = commandLine(in.args)
	case "EXPOSE":
	default:
		return false, nil
	}
	return true, nil
}

// commandLine parses both forms of a command: a list in JSON, or a line for a shell.
func commandLine(args string) []string {
	var list []string
	if err := json.Unmarshal([]byte(args), &list); err == nil {
		return list
	}
	return []string{"/bin/sh", "-c", args}
}

// setPairs parses "KEY=value KEY2='another value'", or "KEY value", and calls set for each pair.
func setPairs(args string, set func(key, value string)) error {
	words, err := splitWords(args)
	if err != nil {
		return err
	}
	if len(words) > 1 && !strings.Contains(words[0], "=") {
		_, value, _ := strings.Cut(args, words[0])
		set(words[0], strings.TrimSpace(value))
		return nil
	}
	for _, w := range words {
		key, value, ok := strings.Cut(w, "=")
		if !ok || key == "" {
			return fmt.Errorf("%q: must be KEY=value", w)
		}
		set(key, value)
	}
	return nil
}

// splitWords splits text at unquoted blanks, and removes quotes and backslashes.
func splitWords(text string) (words []string, err error) {
	var word strings.Builder
	var quote rune
	inWord, escaped := false, false
	for _, r := range text {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, inWord = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == ' ' || r == '\t':
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("unbalanced quotes in %q", text)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

func lookUpEnv(env []string, key string) string {
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, key+"="); ok {
			return value
		}
	}
	return ""
}

func setEnv(env []string, key, value string) []string {
	for i, kv := range env {
		if strings.HasPrefix(kv, key+"=") {
			env[i] = key + "=" + value
			return env
		}
	}
	return append(env, key+"="+value)
}
