package main

import (
	"bytes"
	"go/ast"
	"go/doc/comment"
	"go/printer"
	"regexp"
	"strings"
)

const generated = "<!-- Written by go run ./docs/cmd/reference from the comments of the code. Change those. -->\n"

// title is a package's path in the repository.
func (p pkg) title() string { return strings.TrimPrefix(p.path, "github.com/weirflow/weir/") }

// markdown turns a comment into paragraphs, lists and code. Links to names become code.
func (p pkg) markdown(text string) string {
	var b strings.Builder
	for i, block := range p.doc.Parser().Parse(text).Content {
		if i > 0 {
			b.WriteString("\n")
		}
		switch block := block.(type) {
		case *comment.Paragraph:
			b.WriteString(inline(block.Text) + "\n")
		case *comment.Heading:
			b.WriteString("**" + inline(block.Text) + "**\n")
		case *comment.Code:
			b.WriteString("```\n" + block.Text + "```\n")
		case *comment.List:
			for _, item := range block.Items {
				b.WriteString("- " + inline(item.Content[0].(*comment.Paragraph).Text) + "\n")
			}
		}
	}
	return b.String()
}

func (p pkg) cell(text string) string {
	var parts []string
	for _, block := range p.doc.Parser().Parse(text).Content {
		if block, ok := block.(*comment.Paragraph); ok {
			parts = append(parts, inline(block.Text))
		}
	}
	return strings.ReplaceAll(strings.Join(parts, " "), "|", "\\|")
}

var (
	spaces = regexp.MustCompile(`\s+`)
	// identifier is a word that Markdown would misread: with an underscore, an asterisk
	// or angle brackets.
	identifier = regexp.MustCompile("[^\\s`(]*[A-Za-z][_*<>][A-Za-z][^\\s`.,:;)]*|[*<][A-Za-z][^\\s`.,:;)]*")
)

func inline(texts []comment.Text) string {
	var b strings.Builder
	for _, t := range texts {
		switch t := t.(type) {
		case comment.Plain:
			b.WriteString(identifier.ReplaceAllString(string(t), "`$0`"))
		case comment.Italic:
			b.WriteString("*" + string(t) + "*")
		case *comment.DocLink:
			b.WriteString("`" + inline(t.Text) + "`")
		case *comment.Link:
			b.WriteString(inline(t.Text))
		}
	}
	return strings.ReplaceAll(spaces.ReplaceAllString(b.String(), " "), "``", "`")
}

func (p pkg) signature(f *ast.FuncDecl) string {
	bare := *f
	bare.Doc, bare.Body = nil, nil
	return p.code(&bare)
}

func (p pkg) code(n ast.Node) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, p.fset, n); err != nil {
		return err.Error()
	}
	return spaces.ReplaceAllString(b.String(), " ")
}
