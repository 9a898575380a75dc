package survey

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Markdown shows the report, one text a section. Joined they are the whole.
func (r *Report) Markdown() []string {
	sections := []string{r.head()}
	for _, s := range []string{r.languages(), r.biggest(), r.entries(), r.tests(), r.readme(), r.commits(), r.todos()} {
		if s != "" {
			sections = append(sections, "\n"+s)
		}
	}
	return sections
}

func (r *Report) head() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Map of %s\n\n%d files in %d folders, %s read.", code(r.Name), r.Seen.Files, r.Seen.Folders, size(r.Seen.Bytes))
	if len(r.Seen.Left) > 0 {
		fmt.Fprintf(&b, " Not entered: %s.", codes(r.Seen.Left, 6))
	}
	if r.Seen.Unread > 0 {
		fmt.Fprintf(&b, " %d could not be read or are over %s.", r.Seen.Unread, size(maxText))
	}
	if note := r.Seen.Note(); note != "" {
		b.WriteString("\n" + note)
	}
	b.WriteByte('\n')
	return b.String()
}

func (r *Report) languages() string {
	if len(r.Languages) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("## Languages\n\n| Language | Files | Lines | Bytes |\n|---|--:|--:|--:|\n")
	for i, l := range r.Languages {
		if i == topLanguages {
			fmt.Fprintf(&b, "\nand %d more\n", len(r.Languages)-topLanguages)
			break
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %s |\n", l.Name, l.Files, l.Lines, size(l.Bytes))
	}
	return b.String()
}

func (r *Report) biggest() string {
	var items []string
	for _, f := range r.Biggest {
		items = append(items, fmt.Sprintf("%s %s", code(f.Path), size(f.Size)))
	}
	return bullets("Biggest files", items, topFiles)
}

func (r *Report) entries() string {
	var items []string
	for _, e := range r.Entries {
		item := fmt.Sprintf("%s: %s", e.Kind, code(e.Path))
		if e.Text != "" {
			item += " — " + e.Text
		}
		items = append(items, item)
	}
	return bullets("Entry points", items, 20)
}

func (r *Report) tests() string {
	var items []string
	for _, kind := range slices.Sorted(maps.Keys(r.Tests.Kinds)) {
		items = append(items, fmt.Sprintf("%d files %s", r.Tests.Kinds[kind], code(kind)))
	}
	if len(items) == 0 {
		items = append(items, "no test files found by their names")
	} else if len(r.Tests.Run) > 0 {
		items = append(items, "run them with "+codes(r.Tests.Run, 5))
	}
	return bullets("Tests", items, 20)
}

func (r *Report) readme() string {
	if len(r.Readme.Lines) == 0 {
		return ""
	}
	return fmt.Sprintf("## %s begins\n\n> %s\n", r.Readme.Path, strings.Join(r.Readme.Lines, "\n> "))
}

func (r *Report) commits() string { return bullets("Recent commits", r.Commits, 8) }

func (r *Report) todos() string {
	if r.Todos.Count == 0 {
		return ""
	}
	items := []string{fmt.Sprintf("%d notes in %d files", r.Todos.Count, r.Todos.Files)}
	for _, t := range r.Todos.Places {
		items = append(items, fmt.Sprintf("%s (%d): %s", code(fmt.Sprintf("%s:%d", t.Path, t.Line)), t.Count, code(t.Text)))
	}
	return bullets("TODO and FIXME", items, 1+topTodos)
}

func bullets(title string, items []string, most int) string {
	if len(items) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n", title)
	for i, item := range items {
		if i == most {
			fmt.Fprintf(&b, "- and %d more\n", len(items)-most)
			break
		}
		fmt.Fprintf(&b, "- %s\n", item)
	}
	return b.String()
}

// code marks a name as code; a backtick in it cannot end the mark.
func code(s string) string { return "`" + strings.ReplaceAll(s, "`", "'") + "`" }

func codes(names []string, most int) string {
	var out []string
	for i, n := range names {
		if i == most {
			out = append(out, fmt.Sprintf("and %d more", len(names)-most))
			break
		}
		out = append(out, code(n))
	}
	return strings.Join(out, ", ")
}

func size(n int64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
