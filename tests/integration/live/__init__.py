"""The page that follows a campaign."""
