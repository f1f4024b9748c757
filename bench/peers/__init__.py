"""Other engines beside ours: what they are asked, in environments of their own."""
