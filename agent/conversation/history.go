package conversation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A historyFile is the JSON object with the history of one turn, or of a part of one. It is in
// object storage, next to the versions of the files: if the store is lost, another machine
// restores the messages of the conversation from it.
type historyFile struct {
	Turn         string             `json:"turn"`
	Number       int64              `json:"number"`
	Part         int                `json:"part,omitempty"` // of the turn, from 0; the last part has the Usage
	Ended        time.Time          `json:"ended"`
	Conversation agent.Conversation `json:"conversation"`
	Usage        agent.TokenUsage   `json:"usage"`
	Messages     []*agent.Message   `json:"messages"`
}

// Limits of history files, in bytes. JSON may be six times as long as the text in it.
const (
	maxHistoryMessages = 16 << 20  // the texts of messages after which the next file begins
	maxHistoryFile     = 256 << 20 // the size of a file to read
)

// historyPrefix returns the prefix of the history of a conversation, relative to the prefix of
// its place. It has the account and the id because templates may share a place between
// conversations and accounts.
func historyPrefix(c *agent.Conversation) string { return "history/" + c.Account + "/" + c.ID + "/" }

// historyTimeout limits the write of a history file.
const historyTimeout = time.Minute

// promptPosition is the position of the prompt in a turn, for messageKey.
const promptPosition = "0"

// messageKey returns the key of the message at a position of a turn.
func messageKey(turn, at string) string {
	sum := sha256.Sum256([]byte(turn + "/" + at))
	return hex.EncodeToString(sum[:16])
}

// A history collects the messages of one turn, and writes them to object storage.
type history struct {
	place        *Storage // nil if the turn has no history
	log          *slog.Logger
	conversation agent.Conversation // as of the start of the turn
	turn         string             // its id
	number       int64              // of the turn

	messages []*agent.Message // not yet in a file
	size     int              // of messages, in bytes
	files    int              // the number of files of the turn
}

// newHistory returns the history of a turn in a sandbox. The turn has none if the files of the
// sandbox are not pushed.
func (t *turn) newHistory(sb *sandbox) *history {
	h := &history{log: t.service.log, conversation: t.conversation, turn: t.id, number: t.number}
	h.conversation.Turn = nil
	if sb.pushesFiles() {
		h.place = sb.place
	}
	return h
}

// addMessage adds a message. It starts another file when there are too many messages for one.
// The files are the same if another program finishes the turn.
func (h *history) addMessage(ctx context.Context, m *agent.Message) {
	if h.place == nil {
		return
	}
	h.messages = append(h.messages, m)
	if h.size += messageSize(m); h.size > maxHistoryMessages {
		h.writeMessages(ctx, agent.TokenUsage{})
	}
}

// writeMessages writes the messages since its last call to object storage, also after ctx has
// ended. The last call for a turn has its usage.
func (h *history) writeMessages(ctx context.Context, usage agent.TokenUsage) {
	if h.place == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), historyTimeout)
	defer cancel()
	f := historyFile{Turn: h.turn, Number: h.number, Part: h.files, Ended: time.Now(), Conversation: h.conversation, Usage: usage, Messages: h.messages}
	h.messages, h.size, h.files = nil, 0, h.files+1
	if err := f.putFile(ctx, h.place); err != nil {
		h.log.Error("conversation: cannot save the history of a turn", "conversation", h.conversation.ID, "turn", h.turn, "err", err)
	}
}

// putFile writes the file to the bucket. The keys sort by the numbers of turns and parts.
func (f *historyFile) putFile(ctx context.Context, p *Storage) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s%012d-%s-%06d.json", historyPrefix(&f.Conversation), f.Number, f.Turn, f.Part)
	_, err = p.Bucket.Put(ctx, p.objectKey(name), bytes.NewReader(data), int64(len(data)), objectstore.Condition{})
	return err
}

// objectKey returns the key of the object with a name below the prefix.
func (p *Storage) objectKey(name string) string {
	if p.Prefix == "" {
		return name
	}
	return p.Prefix + "/" + name
}

// restoreHistory copies messages from object storage to the store, which may be new.
func (t *turn) restoreHistory(ctx context.Context, sb *sandbox) error {
	for o, err := range sb.place.Bucket.List(ctx, sb.place.objectKey(historyPrefix(&t.conversation))) {
		if err != nil {
			return err
		}
		f, err := readHistoryFile(ctx, sb.place, o.Key)
		if err != nil {
			return err
		}
		if f == nil {
			t.service.log.Warn("conversation: cannot read a history file", "conversation", t.conversation.ID, "key", o.Key)
			continue
		}
		if err := t.restoreMessages(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// deleteHistory deletes the history of a conversation that has a sandbox.
func (s *Service) deleteHistory(ctx context.Context, c *agent.Conversation) error {
	tpl, err := s.opts.Templates.Get(c.Template, c.Agent)
	if err != nil {
		return err
	}
	sb, err := s.openSandbox(ctx, tpl, c, &store.AgentSandbox{Sandbox: agent.Sandbox{ID: c.Sandbox}})
	if err != nil || sb.place == nil {
		return err
	}
	var keys []string
	for o, err := range sb.place.Bucket.List(ctx, sb.place.objectKey(historyPrefix(c))) {
		if err != nil {
			return err
		}
		keys = append(keys, o.Key)
	}
	return sb.place.Bucket.Delete(ctx, keys...)
}

// readHistoryFile reads a history file. It returns nil if the object is not a history file.
func readHistoryFile(ctx context.Context, p *Storage, key string) (*historyFile, error) {
	o, _, err := p.Bucket.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	data, err := io.ReadAll(io.LimitReader(o, maxHistoryFile))
	if err != nil {
		return nil, err
	}
	var f historyFile
	if json.Unmarshal(data, &f) != nil || f.Turn == "" || f.Number < 1 {
		return nil, nil
	}
	return &f, nil
}

// restoreMessages adds the messages of a history file to the store, and its tokens. The number of
// the turn becomes greater than that of the file.
func (t *turn) restoreMessages(ctx context.Context, f *historyFile) error {
	for _, m := range f.Messages {
		m.Account, m.Conversation, m.Turn = t.conversation.Account, t.conversation.ID, f.Turn
		if err := t.service.store.AddMessage(ctx, m); err != nil {
			return err
		}
	}
	if f.Usage != (agent.TokenUsage{}) { // only the last part of a turn has them, since AddUsage counts a turn once
		if err := t.service.store.AddUsage(ctx, t.conversation.Account, t.conversation.ID, f.Number, f.Usage); err != nil {
			return err
		}
	}
	if f.Number >= t.number {
		t.number = f.Number + 1
		return t.lease.updateRecord(t.ctx, func(c *store.Conversation) { c.Turns = t.number })
	}
	return nil
}

// restorePrompt adds the prompt of a resumed turn to its history.
func (t *turn) restorePrompt() {
	if m := t.findPrompt(); m != nil {
		t.history.addMessage(t.ctx, m)
	}
}

// findPrompt returns the prompt of a resumed turn, nil if its first program did not save it.
func (t *turn) findPrompt() *agent.Message {
	for page := (store.Page{Limit: 10}); ; {
		some, err := t.service.store.Messages(t.ctx, t.conversation.Account, t.conversation.ID, page)
		if err != nil {
			t.service.log.Warn("conversation: cannot add the prompt of a turn to its history", "conversation", t.conversation.ID, "turn", t.id, "err", err)
		}
		for _, m := range some {
			if m.Key == messageKey(t.id, promptPosition) {
				return m
			}
		}
		if len(some) == 0 || some[0].Turn != t.id {
			return nil
		}
		page.After = some[0].Key
	}
}
