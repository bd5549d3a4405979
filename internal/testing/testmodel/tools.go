package testmodel

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A tool is one that an agent offers in a request.
type tool struct {
	name      string
	schema    schema
	namespace string // "" for none
	script    bool   // its input is JavaScript that calls other tools, as of newer models of codex
}

// A schema is the part of a JSON schema that this package reads.
type schema struct {
	Type       any               `json:"type"` // a string or a list of them
	Enum       []any             `json:"enum"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
}

// isType reports whether the schema is for values of a type, in either spelling: "string" or "STRING".
func (s schema) isType(name string) bool {
	switch t := s.Type.(type) {
	case string:
		return strings.EqualFold(t, name)
	case []any:
		return slices.ContainsFunc(t, func(v any) bool { word, ok := v.(string); return ok && strings.EqualFold(word, name) })
	}
	return false
}

// The names of the tools for shell commands and for writing files, in order of preference, and of their arguments. The names of
// codex's depend on its version and on the model that it asks for.
var (
	shellTools  = []string{"Bash", "bash", "exec_command", "shell_command", "shell", "run_shell_command", "developer__shell", "exec"}
	writeTools  = []string{"Write", "write", "write_file", "create"}
	commandArgs = []string{"command", "cmd"}
	pathArgs    = []string{"file_path", "filePath", "path"}
	contentArgs = []string{"content", "file_text", "contents"}
)

// OffersTool reports whether the agent offered a tool called name in a request, as Requests returns it.
func OffersTool(body, name string) bool {
	for _, p := range []protocol{messages, responses, completions, gemini} {
		if req, err := p.parse([]byte(body)); err == nil && req.findTool(name) != nil {
			return true
		}
	}
	return false
}

// findTool returns the first of names that the agent offers, or nil.
func (r *request) findTool(names ...string) *tool {
	for _, name := range names {
		for i := range r.tools {
			if r.tools[i].name == name {
				return &r.tools[i]
			}
		}
	}
	return nil
}

// A call is a call of a tool.
type call struct {
	tool  *tool
	input object
}

// renderScript returns JavaScript that runs the command of the call, and prints its result.
func (c *call) renderScript() string {
	return "text(await tools.exec_command(" + c.inputText() + "));"
}

// inputText returns the input as JSON.
func (c *call) inputText() string {
	text, err := json.Marshal(c.input)
	if err != nil {
		panic(err) // impossible for what came from JSON
	}
	return string(text)
}

// callOf translates a reply to a call of a tool that the agent offers; nil if the reply has no call.
func (r *request) callOf(reply Reply) (*call, error) {
	switch {
	case reply.Run != "":
		return r.shellCall(reply.Run)
	case reply.Path != "":
		return r.writeCall(reply.Path, reply.Content)
	case reply.Call == "":
		return nil, nil
	}
	t := r.findTool(reply.Call)
	if t == nil {
		return nil, fmt.Errorf("testmodel: the agent offers no tool %s", reply.Call)
	}
	return &call{tool: t, input: object(reply.Input)}, nil
}

// shellCall returns a call that runs a shell command.
func (r *request) shellCall(command string) (*call, error) {
	t := r.findTool(shellTools...)
	if t == nil {
		return nil, fmt.Errorf("testmodel: the agent offers no tool for %q", command)
	}
	arg := t.findArg(commandArgs)
	if len(t.schema.Properties) == 0 && (t.script || t.name == "exec_command") {
		arg = "cmd"
	}
	c := &call{tool: t, input: object{arg: command}}
	if s := t.schema.Properties[arg]; s.isType("array") || s.Type == nil && t.name == "shell" {
		c.input[arg] = []string{"sh", "-c", command}
	}
	t.fillRequired(c.input)
	return c, nil
}

// writeCall returns a call that writes a file: of a tool for that, or else of the shell.
func (r *request) writeCall(path, content string) (*call, error) {
	t := r.findTool(writeTools...)
	if t == nil {
		return r.shellCall(fmt.Sprintf("printf %%s %s > %s", quoteWord(content), quoteWord(path)))
	}
	c := &call{tool: t, input: object{t.findArg(pathArgs): path, t.findArg(contentArgs): content}}
	t.fillRequired(c.input)
	return c, nil
}

// findArg returns the first of names that is an argument of the tool, or else the first of all.
func (t *tool) findArg(names []string) string {
	for _, name := range names {
		if _, ok := t.schema.Properties[name]; ok {
			return name
		}
	}
	return names[0]
}

// fillRequired adds values for the other arguments that the tool requires, and a description, which claude shows.
func (t *tool) fillRequired(input object) {
	if _, ok := t.schema.Properties["description"]; ok || t.name == "Bash" {
		input["description"] = "does a step of the script"
	}
	t.schema.fillRequired(input)
}

// fillRequired adds values for the properties that the schema requires and v does not have.
func (s schema) fillRequired(v object) {
	for _, name := range s.Required {
		if _, ok := v[name]; ok {
			continue
		}
		switch p := s.Properties[name]; {
		case len(p.Enum) > 0:
			v[name] = p.Enum[0]
		case p.isType("boolean"):
			v[name] = false
		case p.isType("integer") || p.isType("number"):
			v[name] = 60
		case p.isType("array"):
			v[name] = []any{}
		case p.isType("object"):
			v[name] = object{}
		default:
			v[name] = "step"
		}
	}
}

// plainAnswer returns the text of the answer to a request without tools.
func (r *request) plainAnswer() string {
	if r.answer == nil {
		return "ok"
	}
	v := object{}
	r.answer.fillRequired(v)
	c := call{input: v}
	return c.inputText()
}

// quoteWord quotes a word for a shell.
func quoteWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// textOf returns the text in the content of a message: a string, or a list of parts with texts.
func textOf(content json.RawMessage) string {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(content, &parts) != nil {
		return string(content) // a result of another form
	}
	for _, p := range parts {
		text += p.Text
	}
	return text
}
