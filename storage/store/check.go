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

// MaxMessage is how large the texts of a message may be together, and MaxRecord those
// of a conversation or a sandbox, in bytes.
const (
	MaxMessage = 16 << 20
	MaxRecord  = 64 << 10
)

// CheckConversation says whether c can be kept: it has a valid name as its account, an
// id as ConversationID returns it, and texts in UTF-8, of MaxRecord together at most.
// Kinds: ErrInvalid.
func CheckConversation(op string, c *Conversation) error {
	err := checkAccount(c.Account)
	if plain, bad := agent.ConversationID(c.ID); err == nil && (bad != nil || plain != c.ID) {
		err = fmt.Errorf("id %q: is not what ConversationID returns", c.ID)
	}
	if err == nil {
		all := []string{c.Organization, c.Agent, c.Template, c.Sandbox}
		if c.Turn != nil {
			all = append(all, c.Turn.ID, c.Turn.Server, c.Turn.Sandbox, c.Turn.Process, c.Caller)
		}
		err = checkTexts(MaxRecord, all...)
	}
	return invalid(op, c.ID, err)
}

// CheckMessage says whether m can be kept: it has a role, a time, a valid name as its
// key, texts in UTF-8, of MaxMessage together at most, and inputs of tools that are JSON.
// Kinds: ErrInvalid.
func CheckMessage(op string, m *agent.Message) error {
	all := []string{m.Turn, m.Body}
	var err error
	switch {
	case !atoll.ValidName(m.Key):
		err = fmt.Errorf("key %q: use a UUID", m.Key)
	case m.Role != agent.RoleUser && m.Role != agent.RoleAssistant && m.Role != agent.RoleTool:
		err = fmt.Errorf("role %q: there are %s, %s and %s", m.Role, agent.RoleUser, agent.RoleAssistant, agent.RoleTool)
	case m.Time.IsZero():
		err = errors.New("the message has no time")
	}
	for _, c := range m.ToolCalls {
		if len(c.Input) > 0 && !json.Valid(c.Input) && err == nil {
			err = fmt.Errorf("input of tool call %q: is not JSON", c.ID)
		}
		all = append(all, c.ID, c.Type, c.Name, string(c.Input), c.Output, c.Status, c.Error)
	}
	if err == nil {
		err = checkTexts(MaxMessage, all...)
	}
	return invalid(op, m.Key, err)
}

// CheckSandbox says whether x can be kept: it has valid names as its account and id, and
// texts in UTF-8, of MaxRecord together at most. Kinds: ErrInvalid.
func CheckSandbox(op string, x *AgentSandbox) error {
	err := checkAccount(x.Account)
	if err == nil && !atoll.ValidName(x.ID) {
		err = fmt.Errorf("id %q: use a UUID", x.ID)
	}
	if err == nil {
		err = checkTexts(MaxRecord, x.Organization, x.Agent, x.Template, x.External, x.Conversation, x.Meta.SyncError)
	}
	return invalid(op, x.ID, err)
}

// CheckPage says whether p has a limit. Kinds: ErrInvalid.
func CheckPage(op string, p Page) error {
	if p.Limit <= 0 {
		return atoll.Errorf(op, "", atoll.ErrInvalid, "a page of %d: say how many there may be", p.Limit)
	}
	return nil
}

// FirstRev draws the Rev of what is inserted: who has read something that was deleted,
// and made again, must not take this for that.
func FirstRev() int64 { return 1 + rand.Int64N(1<<62) }

func checkAccount(name string) error {
	if !atoll.ValidName(name) {
		return fmt.Errorf("account %q: is no name", name)
	}
	return nil
}

func checkTexts(most int, all ...string) error {
	size := 0
	for _, text := range all {
		if !utf8.ValidString(text) {
			return errors.New("a text is not UTF-8: bytes that are none have to be replaced before")
		}
		size += len(text)
	}
	if size > most {
		return fmt.Errorf("its texts have %d bytes: there may be %d", size, most)
	}
	return nil
}

func invalid(op, id string, err error) error {
	if err == nil {
		return nil
	}
	return atoll.E(op, id, atoll.ErrInvalid, err)
}
