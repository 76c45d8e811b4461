"""Running a template from somebody's file: what it may reach, and how much it may do."""
