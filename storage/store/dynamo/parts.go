package dynamo

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/seed46cd37a8/atoll/agent"
)

const (
	// maxInlineTexts is the maximum size of texts within the item of a message. An item may have 400 KB, including
	// its copy in the index.
	maxInlineTexts = 128 << 10
	// callOverhead is the size of a tool call besides its texts: attribute names, and the overhead of DynamoDB.
	callOverhead = 64
	// partSize is the maximum size of a part.
	partSize = 256 << 10
)

// A storedTexts is the JSON form of all texts of a message, stored in parts.
type storedTexts struct {
	Body  string       `json:"body"`
	Calls []storedCall `json:"calls,omitempty"`
}

// A storedCall is the JSON form of a tool call. The input is a string, since JSON within JSON would not be retained
// byte for byte.
type storedCall struct {
	agent.ToolCall
	Input string `json:"input,omitempty"`
}

// textSize returns the size of the texts of a message within its item.
func textSize(m *agent.Message) int {
	n := len(m.Body)
	for _, c := range m.ToolCalls {
		n += callOverhead + len(c.ID) + len(c.Type) + len(c.Name) + len(c.Input) + len(c.Output) + len(c.Status) + len(c.Error)
	}
	return n
}

// putTexts adds the texts to the item of a message, or stores them in parts and returns the keys of those.
func (s *Store) putTexts(ctx context.Context, it item, m *agent.Message, c claim, mark string) (keys []string, err error) {
	if textSize(m) <= maxInlineTexts {
		setTexts(it, m)
		return nil, nil
	}
	text, err := encodeTexts(m)
	if err != nil {
		return nil, err
	}
	for len(text) > 0 {
		n := min(partSize, len(text))
		key := partKey(m.Key, mark, len(keys))
		keys = append(keys, key)
		err := s.putItem(ctx, messagesTable, item{
			attrConversation: it[attrConversation], attrKey: textOf(key), attrData: &types.AttributeValueMemberB{Value: text[:n]},
		})
		// An existing part is this one: the answer was lost.
		if err != nil && !isRefused(err) {
			ctx, cancel := detachContext(ctx)
			defer cancel()
			_ = s.dropParts(ctx, m, c, keys) // the first error counts
			return nil, err
		}
		text = text[n:]
	}
	it[attrParts] = numberOf(int64(len(keys)))
	return keys, nil
}

func encodeTexts(m *agent.Message) ([]byte, error) {
	whole := storedTexts{Body: m.Body}
	for _, c := range m.ToolCalls {
		whole.Calls = append(whole.Calls, storedCall{c, string(c.Input)})
	}
	return json.Marshal(whole)
}

// partKey returns the key of part n. No message has such a key, since names have no slash.
func partKey(key, mark string, n int) string { return fmt.Sprintf("%s/%s/%06d", key, mark, n) }

// partKeys returns the keys of the parts of the message that was put with mark.
func partKeys(m *agent.Message, mark string) []string {
	if textSize(m) <= maxInlineTexts {
		return nil
	}
	text, err := encodeTexts(m)
	if err != nil {
		return nil // then there are no parts
	}
	var keys []string
	for n := 0; n*partSize < len(text); n++ {
		keys = append(keys, partKey(m.Key, mark, n))
	}
	return keys
}

// dropParts removes the parts of a message that does not exist.
func (s *Store) dropParts(ctx context.Context, m *agent.Message, c claim, keys []string) error {
	return s.removeItems(ctx, messagesTable, collectionKey(m.Account, m.Conversation, c.birth), keys)
}

// readTexts reads the texts of a message from its parts.
func (s *Store) readTexts(ctx context.Context, hash string, f fields, m *agent.Message) error {
	var q selection
	q.table = messagesTable
	q.e.requireEqual(textOf(hash), attrConversation)
	q.e.conds = append(q.e.conds, fmt.Sprintf("begins_with(%s, %s)", q.e.namePlaceholder(attrKey), q.e.valuePlaceholder(textOf(m.Key+"/"+f.textField(attrWrite)+"/"))))
	var text []byte
	n := int64(0)
	err := s.queryItems(ctx, q, func(it item) error {
		part := fieldsOf(it)
		text = append(text, part.bytesField(attrData)...)
		n++
		return *part.err
	})
	if err != nil {
		return err
	}
	var whole storedTexts
	if n != f.numberField(attrParts) || json.Unmarshal(text, &whole) != nil {
		f.reportDamage(attrParts)
		return *f.err
	}
	m.Body = whole.Body
	for _, c := range whole.Calls {
		call := c.ToolCall
		if c.Input != "" {
			call.Input = json.RawMessage(c.Input)
		}
		m.ToolCalls = append(m.ToolCalls, call)
	}
	return nil
}
