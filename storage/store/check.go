package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// MaxMessage is the maximum total size of the texts of a message, and MaxRecord that of a conversation or a sandbox,
// in bytes.
const (
	MaxMessage = 16 << 20
	MaxRecord  = 64 << 10
)

// CheckConversation returns an error if c cannot be stored. The account must be a valid name, the id must be as
// ConversationID returns it, and the texts must be UTF-8 of at most MaxRecord bytes in total. Kinds: ErrInvalid.
func CheckConversation(op string, c *Conversation) error {
	err := checkAccount(c.Account)
	if plain, bad := agent.ConversationID(c.ID); err == nil && (bad != nil || plain != c.ID) {
		err = fmt.Errorf("id %q is not as ConversationID returns it", c.ID)
	}
	if err == nil {
		all := []string{c.Organization, c.Agent, c.Template, c.Sandbox}
		if c.Turn != nil {
			all = append(all, c.Turn.ID, c.Turn.Server, c.Turn.Sandbox, c.Turn.Process, c.Caller)
		}
		err = checkTexts(MaxRecord, all...)
	}
	return wrapInvalid(op, c.ID, err)
}

// CheckMessage returns an error if m cannot be stored. It must have a role, a time and a valid name as its key, its
// texts must be UTF-8 of at most MaxMessage bytes in total, and the inputs of tool calls must be JSON. Kinds:
// ErrInvalid.
func CheckMessage(op string, m *agent.Message) error {
	all := []string{m.Turn, m.Body}
	var err error
	switch {
	case !atoll.ValidName(m.Key):
		err = fmt.Errorf("key %q: use a UUID", m.Key)
	case m.Role != agent.RoleUser && m.Role != agent.RoleAssistant && m.Role != agent.RoleTool:
		err = fmt.Errorf("unknown role %q: use %s, %s or %s", m.Role, agent.RoleUser, agent.RoleAssistant, agent.RoleTool)
	case m.Time.IsZero():
		err = errors.New("the message has no time")
	}
	for _, c := range m.ToolCalls {
		if len(c.Input) > 0 && !json.Valid(c.Input) && err == nil {
			err = fmt.Errorf("input of tool call %q is not JSON", c.ID)
		}
		all = append(all, c.ID, c.Type, c.Name, string(c.Input), c.Output, c.Status, c.Error)
	}
	if err == nil {
		err = checkTexts(MaxMessage, all...)
	}
	return wrapInvalid(op, m.Key, err)
}

// CheckSandbox returns an error if x cannot be stored. The account and the id must be valid names, and the texts must
// be UTF-8 of at most MaxRecord bytes in total. Kinds: ErrInvalid.
func CheckSandbox(op string, x *AgentSandbox) error {
	err := checkAccount(x.Account)
	if err == nil && !atoll.ValidName(x.ID) {
		err = fmt.Errorf("id %q: use a UUID", x.ID)
	}
	if err == nil {
		err = checkTexts(MaxRecord, x.Organization, x.Agent, x.Template, x.External, x.Conversation, x.Meta.SyncError)
	}
	return wrapInvalid(op, x.ID, err)
}

// CheckPage returns an error if p has no positive limit. Kinds: ErrInvalid.
func CheckPage(op string, p Page) error {
	if p.Limit <= 0 {
		return atoll.Errorf(op, "", atoll.ErrInvalid, "page limit %d: use a positive number", p.Limit)
	}
	return nil
}

// FirstRev returns a random Rev for a new record. A caller that still has a deleted record of the same id must not
// mistake the new one for it.
func FirstRev() int64 { return 1 + rand.Int64N(1<<62) }

func checkAccount(name string) error {
	if !atoll.ValidName(name) {
		return fmt.Errorf("account %q is not a valid name", name)
	}
	return nil
}

func checkTexts(most int, all ...string) error {
	size := 0
	for _, text := range all {
		if !utf8.ValidString(text) {
			return errors.New("a text is not valid UTF-8: replace the invalid bytes")
		}
		size += len(text)
	}
	if size > most {
		return fmt.Errorf("the texts have %d bytes; at most %d are allowed", size, most)
	}
	return nil
}

func wrapInvalid(op, id string, err error) error {
	if err == nil {
		return nil
	}
	return atoll.E(op, id, atoll.ErrInvalid, err)
}
